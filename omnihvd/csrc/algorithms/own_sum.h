// How the ranks of a communicator sum by omnihvd alone: through an in-network aggregator, if they
// have one (OMNIHVD_INLINE); over shared memory, if all are on one host; in two levels, if there
// are several hosts with the same number of ranks each; else by streaming. Reduce-scatters use
// neither two levels nor an in-network aggregator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "algorithms/network_sum.h"
#include "algorithms/shared_memory/shared_sum.h"
#include "algorithms/two_levels.h"
#include "algorithms/ways.h"
#include "engine/session.h"

namespace omnihvd {

// One thread at a time. Leaves its groups when destroyed.
class OwnSum {
 public:
  // Collective. Connects the ranks. settings: rank 0's where all must agree; hosts: of each rank.
  // Throws Error, on all ranks.
  OwnSum(Exchange& exchange, const Settings& settings, const std::vector<std::string>& hosts);

  // Collective; in == out: in place. Throws Error; the object must then be destroyed, because
  // others may wait for this rank.
  Ways::SumMade allreduce(const void* in, void* out, uint64_t count, DType dtype,
                          const Codec& codec = {});

  // out = this rank's share of the sum of all ranks' `in`; the two may overlap. Rank r's share has
  // shares[r] elements; shares are adjacent, in the order of ranks. Requires settings and hosts for
  // which can_scatter() is true. Otherwise as allreduce().
  Ways::SumMade reduce_scatter(const void* in, void* out, const std::vector<uint64_t>& shares,
                               DType dtype, const Codec& codec = {});
  // Sets the time-out of sums from now on; 0: none.
  void set_timeout(double seconds);
  // The same on all ranks.
  static bool can_scatter(const Settings& settings, const std::vector<std::string>& hosts);

  // Called from a sum's thread while it waits: fails the sum on all ranks, with this message.
  void fail(const std::string& why);

  // The engine's group; null: none.
  std::shared_ptr<Group> group() const { return levels_ ? levels_->between() : group_; }

 private:
  uint8_t* scratch(size_t bytes);

  const bool whole_inside_;  // codecs: between hosts alone
  const size_t rank_, block_size_;
  std::unique_ptr<NetworkSum> inline_;  // group_ is its group
  // One of these.
  std::unique_ptr<SharedSum> shared_;
  std::unique_ptr<TwoLevels> levels_;
  std::shared_ptr<Group> group_;  // of all ranks
  // For reduce-scatters. Kept between calls, because new memory costs page faults.
  std::unique_ptr<uint8_t[]> scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace omnihvd
