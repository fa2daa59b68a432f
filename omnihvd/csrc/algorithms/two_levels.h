// Allreduce in two levels, for several hosts with the same number of ranks on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter in shared memory; local index i has part i's sum
//   2. between the hosts: the engine sums part i over the H ranks with local index i
//   3. inside each host: allgather of the L parts in shared memory
// A host then streams each block that is non-zero on any of its ranks once, not once a rank. Step 1
// notes which blocks are non-zero, so that the tensor is inspected only once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/shared_memory/shared_sum.h"
#include "engine/session.h"

namespace omnihvd {

// One thread at a time.
class TwoLevels final : public Algorithm {
 public:
  // Collective over `all`; the hosts of its ranks must form a grid (host_grid.h). Returns null on
  // all ranks if the ranks of a host share no memory; `*obstacle` then says why. Throws Error, on
  // all ranks.
  static std::unique_ptr<TwoLevels> create(Exchange& all, const Settings& agreed,
                                           const std::vector<std::string>& hosts,
                                           std::string* obstacle);

  Reason can(const Call& call) const override {
    return call.scatters() ? Reason::levels : Reason::none;
  }
  // The union that it returns is of the blocks that are non-zero on any rank of this host, or on
  // any rank in this rank's part. `stats()` counts steps 1 and 2. The codec is for what hosts send,
  // which are sums already; with OMNIHVD_COMPRESS_FIRST for a rank's tensor, too.
  SumMade run(const Call& call, Library& library) override;
  void set_timeout(double seconds) override {
    inside_->set_timeout(seconds);
    between_->set_timeout(seconds);
  }
  void fail(const std::string& why) override;
  std::shared_ptr<Group> group() const override { return between_; }

 private:
  TwoLevels() = default;
  void sum_between(uint8_t* part, uint64_t count, DType dtype, uint8_t* has, const Codec& codec);

  uint64_t local_index_ = 0, local_size_ = 0, block_size_ = 0;
  bool codes_inside_ = true;
  std::unique_ptr<SharedSum> inside_;
  std::shared_ptr<Group> between_;
  std::string ranks_between_;  // for messages
  std::vector<uint8_t> has_;   // [block] non-zero on some rank, as far as known here
};

}  // namespace omnihvd
