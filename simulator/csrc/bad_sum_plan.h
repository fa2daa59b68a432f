// One sum of a random session: what each rank has, and what all must get.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/layout.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

struct SumPlan {
  Shape shape;  // the settings of a group fit it to the number of ranks
  bool in_place = false;
  std::vector<uint64_t> begins_us;     // [machine]
  std::vector<std::vector<bool>> has;  // [machine][block]

  // Draws whether the sum is in place, when each machine begins, and which blocks it has.
  void deal(Dice& dice, uint32_t machines);
  // Small whole numbers that differ by machine and place, so that no order of summation rounds.
  std::vector<uint8_t> input(uint32_t machine) const;
  std::vector<uint8_t> expected(const std::vector<uint32_t>& machines) const;

 private:
  std::vector<uint8_t> encoded(const std::vector<int64_t>& values) const;
};

}  // namespace omnihvd::simulation
