// One allreduce of many ranks, by the engine's own Worker and Aggregator, over a simulated network.
//
// Blocks hold one number instead of a block's elements, so that
// sums cost little and are verified: that of a block is how many ranks have it. Sizes of messages
// are those of the wire format, with the elements that a block would have.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/layout.h"
#include "simulator/csrc/network.h"

namespace omnihvd::simulation {

struct Job {
  uint32_t workers = 1;
  uint32_t dedicated = 0;      // aggregators on hosts of their own; 0: the workers aggregate
  uint32_t shares = 0;         // of the tensor, if the workers aggregate; 0: one for each
  std::vector<uint32_t> fans;  // of levels (tree.h); empty: one level
  uint64_t bytes = 0;          // of a tensor of float32
  uint32_t block_bytes = 1024;
  uint32_t message_bytes = 0;  // of a window: OMNIHVD_MESSAGE_BYTES
  uint32_t slots = 1;          // at most, of each aggregator: OMNIHVD_SLOTS
  uint32_t streams = 1;        // engine threads of each process, with a core each: OMNIHVD_STREAMS
  uint32_t scan_ahead = 0;     // blocks: OMNIHVD_SCAN_AHEAD
  std::vector<std::vector<bool>> has;  // [worker][block]: is it not zero; of one worker: of all
  double loss = 0;                     // of datagrams; 0: messages travel as they are
  uint64_t seed = 0;                   // of what is lost
  std::vector<double> late_s;          // [worker]: when it begins; empty: all at once
  bool goal = false;                   // whether the outcome has the schedule (goal.h)
};

struct Outcome {
  double seconds = 0;          // until the last worker has all sums
  std::vector<double> done_s;  // [worker]
  uint64_t events = 0, messages = 0, frames = 0;
  uint64_t datagrams = 0, again = 0;  // and of them repeated, where some are lost
  double bytes = 0, most_bytes = 0;   // sent in all, and by the host that sent most
  uint32_t most_peers = 0;            // to which a process has sent messages
  uint64_t most_accumulators = 0;     // bytes, of a process
  uint64_t union_blocks = 0;
  std::string goal;
};

// Is called now and then with the share of all sums that ranks have. What it throws ends the
// simulation.
using Progress = std::function<void(double share)>;

// Throws Error: a job that cannot be, or sums that are wrong.
Outcome simulate(const Job& job, const Costs& costs, const Progress& progress);

}  // namespace omnihvd::simulation
