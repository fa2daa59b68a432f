// What the engine threads of a simulated sum share: the job, its network, where aggregators are,
// and what must come out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "protocol/frame.h"
#include "protocol/layout.h"
#include "protocol/tree.h"
#include "protocol/wire.h"
#include "simulation/datagrams.h"
#include "simulation/goal.h"
#include "simulation/network.h"
#include "simulation/sum.h"

namespace omnihvd::simulation {

using Number = int32_t;  // that stands for a block: how many ranks have it

// An aggregator: that of a share, of the group on this level that its host belongs to.
struct Seat {
  uint32_t level = 1, share = 0;
  bool operator==(const Seat& o) const { return level == o.level && share == o.share; }
};

// A frame on its way: refers to numbers of its own, as its sender's memory may change.
struct Parcel {
  Frame frame;
  std::vector<Number> numbers;
};

struct Letter {  // a message
  struct Enclosed {
    Seat seat;  // to which it goes, or from which it comes
    std::shared_ptr<const Parcel> parcel;
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
  const Tree tree;
  Network network;
  std::optional<Datagrams> datagrams;  // where some are lost
  std::vector<Number> expected;        // [block]: how many workers have it
  std::optional<Goal> goal;            // where it is asked for
  Outcome outcome;

  World(const Job& j, const Costs& c, const Layout& l);
  uint32_t hosts() const { return job.workers + job.dedicated; }
  uint32_t top() const { return tree.levels(); }
  // Of a rank's group on this level. Dedicated aggregators are the topmost.
  uint32_t host_of(const Seat& seat, uint32_t rank) const {
    if (job.dedicated && seat.level == top()) return job.workers + seat.share;
    return tree.host(seat.level, tree.group_of(seat.level, rank), seat.share);
  }
  double real_bytes(const Frame& frame, size_t encoded) const {
    return double(encoded) + double(frame.blocks.size()) * (job.block_bytes - sizeof(Number));
  }
};

}  // namespace omnihvd::simulation
