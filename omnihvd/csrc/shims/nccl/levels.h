// Which ranks sum a staged tensor with which others, and in what order.
#pragma once

#include <functional>
#include <memory>

#include "session/session.h"
#include "shims/nccl/staging.h"

namespace omnihvd {

class Levels {
 public:
  virtual ~Levels() = default;

  // Leaves the groups: what is under way fails, on all ranks, and so does what comes later. It may
  // be under way for a moment more, unless `wait`, which engine threads and host functions must not
  // do. Any thread, at any time.
  virtual void leave(bool wait) = 0;

  // Takes the collective's places in the groups' orders; to be called in the same order on all
  // ranks. What it returns begins the sum, once the input has arrived; it does not wait. `done` is
  // called once, on an engine thread, or at once where the groups have been left.
  using Begin = std::function<void(Group::Done done)>;
  virtual Begin collective(std::shared_ptr<StagedCollective>) = 0;
};

// All ranks with each other; or, where GPUs reduce among themselves first, those of one part.
std::shared_ptr<Levels> one_level(std::shared_ptr<Group> group);

// Compress first, then reduce inside the host. Of a grid of hosts by local index, as in
// nccl/hierarchy.h, but on the non-zero blocks, in the hosts' memory:
//   1. inside each host: the blocks that any of its ranks has are summed
//   2. between the hosts: local index i sums part i of the tensor with its like
//   3. inside each host: everybody gets everybody's part. A sum, too, of which one rank has all
//      that is not zero.
// inside, between: the ranks of this host, and those with this local index.
std::shared_ptr<Levels> compress_first(std::shared_ptr<Group> inside,
                                       std::shared_ptr<Group> between);

}  // namespace omnihvd
