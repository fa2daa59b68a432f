// One allreduce of many ranks, by the engine's own Worker and Aggregator, over a simulated network.
//
// Each block holds a single number instead of its elements, so that sums cost little and can be
// verified: the sum of a block is how many ranks have it. Message sizes are those of the wire
// format with the elements that a block would have.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/layout.h"
#include "simulator/csrc/network.h"

namespace omnihvd::simulation {

struct Job {
  uint32_t workers;
  uint32_t dedicated;          // aggregators on hosts of their own; 0: the workers aggregate
  uint32_t shares;             // of the tensor
  std::vector<uint32_t> fans;  // fan-outs of the levels (seats.h)
  uint64_t bytes;              // of a tensor of float32
  uint32_t block_bytes;
  uint32_t message_bytes;              // of a window: OMNIHVD_MESSAGE_BYTES
  uint32_t slots;                      // at most, of each aggregator: OMNIHVD_SLOTS
  uint32_t streams;                    // progress threads of a process, a core each
  uint32_t scan_ahead;                 // blocks: OMNIHVD_SCAN_AHEAD
  double loss;                         // of datagrams; 0: messages are not split into datagrams
  double late_s;                       // when the last worker begins
  bool goal;                           // whether the outcome has the schedule (goal.h)
  std::vector<std::vector<bool>> has;  // [worker][block]: is it not zero; a single row: of all
};

struct Outcome {
  double seconds = 0;          // until the last worker has all sums
  std::vector<double> done_s;  // [worker]
  uint64_t events = 0, messages = 0, frames = 0;
  uint64_t datagrams = 0, again = 0;  // sent, and retransmitted, if some are lost
  double bytes = 0, most_bytes = 0;   // sent in all, and by the host that sent most
  uint32_t most_peers = 0;            // processes to which one process has sent
  uint64_t union_blocks = 0;
  std::string goal;
};

// Called now and then with the fraction of all sums that ranks have. If it throws, the simulation
// ends.
using Progress = std::function<void(double share)>;

// Throws Error if the job is impossible, or if a sum is wrong.
Outcome simulate(const Job& job, const Costs& costs, const Progress& progress);

}  // namespace omnihvd::simulation
