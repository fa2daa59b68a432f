// Defines which ranks sum a staged tensor with each other, and in which order.
#pragma once

#include <functional>
#include <memory>

#include "engine/session.h"
#include "nccl/staging.h"

namespace omnihvd {

class Levels {
 public:
  virtual ~Levels() = default;

  // Leaves the groups: sums under way and later sums fail on all ranks. Sums may continue for a
  // moment, unless `wait` is set; progress threads and host functions must not set it. Any thread,
  // at any time.
  virtual void leave(bool wait) = 0;

  // Takes the collective's places in the groups' orders. All ranks must call it in the same order.
  // The returned function begins the sum, once the input has arrived; it does not wait. `done` is
  // called once: on a progress thread, or at once if the groups have been left.
  using Begin = std::function<void(Group::Done done)>;
  virtual Begin collective(std::shared_ptr<StagedCollective>) = 0;
};

// All ranks sum with each other; or, if GPUs first reduce among themselves, the ranks of one part.
std::shared_ptr<Levels> one_level(std::shared_ptr<Group> group);

// Compresses first, then reduces inside the host. Works on a grid of hosts by local index, as in
// nccl/hierarchy.h, but on the non-zero blocks, in host memory:
//   1. inside each host: the blocks that any of its ranks has are summed
//   2. between the hosts: local index i sums part i of the tensor with its like
//   3. inside each host: every rank gets every part, by a sum in which each block is non-zero on
//      one rank only
// inside: the group of this host's ranks. between: the group of the ranks with this local index.
std::shared_ptr<Levels> compress_first(std::shared_ptr<Group> inside,
                                       std::shared_ptr<Group> between);

}  // namespace omnihvd
