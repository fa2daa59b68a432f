// Allreduce in two levels by the engine alone, for several hosts with the same number of ranks on
// each, where the library that a shim stands in for has nothing for the ranks of a host.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: the ranks sum the tensor, in shared memory
//   2. between the hosts: local index i sums part i of L over the H ranks with its like
//   3. inside each host: everybody gets everybody's part. A sum, too, of which one rank has all
//      that is not zero.
// A host then streams the blocks that are non-zero on any of its ranks once, not once a rank. Step
// 1 notes where there is something, so that the tensor is inspected once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "session/session.h"
#include "shims/agreement.h"

namespace omnihvd {

class TwoLevels {
 public:
  // Collective over `all`; the hosts agreed upon form a grid (see host_grid.h). Throws Error, on
  // all ranks.
  TwoLevels(Engine& engine, Exchange& all, const Agreement& agreement);

  // Collective; in place. Returns how many blocks were non-zero on any rank. Throws Error, and the
  // object must then be destroyed, as the ranks of other hosts may wait for this one. `stats()`
  // counts each step.
  // codec: applied between the hosts.
  uint64_t allreduce(void* data, uint64_t count, DType dtype, const Codec& codec = {});

 private:
  struct Level {
    std::shared_ptr<Group> group;
    std::string ranks;  // for messages
  };
  static Level join(Engine& engine, Exchange& all, const std::vector<int>& ranks, bool colocated,
                    const Settings& agreed);
  static uint64_t reduce(Level& level, uint64_t count, DType dtype, const Group::MakeTensor& make,
                         const Codec& codec = {});

  uint64_t local_index_ = 0, local_size_ = 0, block_size_ = 0;
  Level inside_, between_;
  std::vector<uint8_t> has_;  // [block] somebody has something there, as far as known here
};

}  // namespace omnihvd
