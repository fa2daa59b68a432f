// The plan of a random job of whole sessions, and of its faults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "protocol/layout.h"
#include "simulator/csrc/bad_network.h"
#include "simulator/csrc/prng.h"

namespace omnihvd::simulation {

// One sum of a group.
struct SumPlan {
  Shape shape;  // the settings of a group fit it to the number of ranks
  bool in_place = false;
  std::vector<uint64_t> begins_us;     // [machine]
  std::vector<std::vector<bool>> has;  // [machine][block]

  // The sum of what these machines give; of one alone: what it gives. Small whole numbers that
  // differ by machine and place, so that no order of summation rounds.
  std::vector<uint8_t> total(const std::vector<uint32_t>& machines) const;
};

// A communicator: the processes of these machines form a group, make some sums, and leave it. They
// form it anew when it has failed.
struct GroupPlan {
  std::vector<uint32_t> machines;  // by rank
  std::vector<Settings> settings;  // [rank]
  bool same = true;                // no setting differs that must be the same
  std::vector<SumPlan> sums;       // by machine, in this order; the shape is fitted later
  uint32_t at_once = 1;            // sums under way
  uint64_t begins_us = 0;
};

struct SessionPlan {
  bool long_sums = false;   // of many rounds, over trees and referred memory; few processes die
  uint32_t machines = 1;    // of ranks
  uint32_t dedicated = 0;   // machines of aggregators, numbered after these
  uint64_t timeout_us = 0;  // OMNIHVD_TIMEOUT; longer where rounds take 0.2 s and more
  std::vector<GroupPlan> groups;
  Faults faults;
  struct Crash {
    uint32_t machine;
    uint64_t at_us;
    uint64_t noticed_us;  // so much later its peers notice; kNever: by time-outs alone
    uint64_t again_us;    // so much later it starts again; kNever: it does not
  };
  std::vector<Crash> crashes;
  uint32_t refusals = 0;  // allocations refused, at most
  double refused = 0;     // chance that an allocation is refused
  double refers = 0;      // chance that a message refers to bytes that are cheaper to copy
  double rare = 0;        // chance of each other rare path
  static constexpr uint64_t kNever = UINT64_MAX;

  uint32_t all() const { return machines + dedicated; }
  // Whether sums may fail; and whether refused allocations are the only possible reason.
  bool hopeless() const { return refusals > 0 || breaks(); }
  bool only_memory() const { return refusals > 0 && !breaks(); }
  bool breaks() const;
  // The longest time until a sum on so many levels has ended, either way.
  uint64_t most_us(uint32_t levels) const;
  std::string words() const;
};

SessionPlan make_session_plan(Prng& prng, bool long_sums);

}  // namespace omnihvd::simulation
