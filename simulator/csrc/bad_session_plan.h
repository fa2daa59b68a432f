// What a random job of whole sessions is, and what goes wrong in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session/settings.h"
#include "simulator/csrc/bad_job_plan.h"
#include "simulator/csrc/bad_network.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

// A communicator: machines whose processes form a group, make some sums, and leave it; and form it
// anew when it has failed.
struct GroupPlan {
  std::vector<uint32_t> machines;  // by rank
  std::vector<Settings> settings;  // [rank]
  bool same = true;                // settings that must be the same are
  std::vector<SumPlan> sums;       // by machine, in this order; the shape is fitted later
  uint32_t at_once = 1;            // sums under way
  uint64_t begins_us = 0;
};

struct SessionPlan {
  uint32_t machines = 1;    // of ranks
  uint32_t dedicated = 0;   // behind these, of aggregators
  uint64_t timeout_us = 0;  // OMNIHVD_TIMEOUT
  std::vector<GroupPlan> groups;
  Faults faults;
  struct Crash {
    uint32_t machine;
    uint64_t at_us;
    uint64_t noticed_us;  // later, by those connected to it; kNever: by time-outs alone
    uint64_t again_us;    // later the process is there again; kNever: it is not
  };
  std::vector<Crash> crashes;
  uint32_t refusals = 0;  // of memory, at most
  double refused = 0;     // chance of each place that asks for some
  double rare = 0;        // chance of each other rare path
  static constexpr uint64_t kNever = UINT64_MAX;

  uint32_t all() const { return machines + dedicated; }
  // Whether sums may fail; and whether by nothing but refused memory.
  bool hopeless() const { return refusals > 0 || breaks(); }
  bool only_memory() const { return refusals > 0 && !breaks(); }
  bool breaks() const;
  // In which a sum on so many levels has ended, one way or the other.
  uint64_t most_us(uint32_t levels) const;
  std::string words() const;
};

SessionPlan make_session_plan(Dice& dice);

}  // namespace omnihvd::simulation
