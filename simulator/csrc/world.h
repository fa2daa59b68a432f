// The state that the progress threads of a simulated sum share: the job, its network, where
// aggregators are, and the expected result.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/router.h"
#include "protocol/wire.h"
#include "simulator/csrc/datagrams.h"
#include "simulator/csrc/goal.h"
#include "simulator/csrc/network.h"
#include "simulator/csrc/sum.h"

namespace omnihvd::simulation {

using Number = int32_t;  // stands for a block: how many ranks have it

struct Letter {  // a message
  struct Enclosed {
    Seat seat;  // the role of the receiving or sending aggregator
    Router::Kept frame;
  };
  uint32_t from = 0;
  bool is_result = false;
  double bytes = kHeaderBytes;
  uint64_t in_goal = 0;
  std::vector<Enclosed> enclosed;
};

struct World {
  const Job& job;
  const Costs& costs;
  const Layout layout;
  const Seats seats;
  Network network;
  std::optional<Datagrams> datagrams;  // where some are lost
  std::vector<Number> expected;        // [block]: how many workers have it
  std::optional<Goal> goal;            // where it is asked for
  Outcome outcome;
  uint64_t written = 0;  // blocks of sums, on all ranks

  World(const Job& j, const Costs& c, const Layout& l);
  uint32_t hosts() const { return job.workers + job.dedicated; }
  double real_bytes(const Frame& frame, size_t encoded) const {
    return double(encoded) + double(frame.blocks.size()) * (job.block_bytes - sizeof(Number));
  }
};

}  // namespace omnihvd::simulation
