// The plan of a random job: what it sums, and which faults are injected.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/layout.h"
#include "protocol/tree.h"
#include "simulator/csrc/bad_network.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

struct SumPlan {
  Shape shape;
  uint32_t scan_ahead = 0, slots_at_once = 1;
  bool ordered = false, in_place = false;
  std::vector<uint64_t> begins_us;     // [rank]
  std::vector<std::vector<bool>> has;  // [rank][block]

  const Layout& layout() const { return *layout_; }
  void fix() { layout_ = std::make_shared<Layout>(shape); }
  // Draws whether the sum is in place, when each rank begins, and which blocks it has.
  void deal(Dice& dice, uint32_t ranks);
  // Small whole numbers that differ by rank and place, so that no order of summation rounds.
  std::vector<uint8_t> input(uint32_t rank) const;
  std::vector<uint8_t> expected(const std::vector<uint32_t>& ranks) const;
  size_t most_accumulators() const;

 private:
  std::vector<uint8_t> encoded(const std::vector<int64_t>& values) const;
  std::shared_ptr<const Layout> layout_;
};

struct Plan {
  uint32_t ranks = 1;
  std::vector<uint32_t> fans;
  std::vector<SumPlan> sums;
  Faults faults;
  double rare = 0;        // chance of each rare path
  bool hopeless = false;  // a host stops, or the network stays cut: some sums cannot finish
  std::string words() const;
};

Plan make_plan(Dice& dice);

// All faults except hosts that stop. stays_cut: set if the network stays partitioned.
Faults network_faults(Dice& dice, uint32_t hosts, bool* stays_cut);
std::string words_of(const Faults& faults);

}  // namespace omnihvd::simulation
