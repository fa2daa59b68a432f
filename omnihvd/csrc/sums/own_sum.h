// How the ranks of a communicator sum by omnihvd alone: through an aggregator in the data path, if
// they have one (OMNIHVD_INLINE); all on one host over shared memory; on several with as many ranks
// each in two levels; else streaming. Reduce-scatters are made neither in two levels nor by such an
// aggregator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/session.h"
#include "shared/shared_sum.h"
#include "sums/inline_sum.h"
#include "sums/two_levels.h"
#include "ways/ways.h"

namespace omnihvd {

// One thread at a time. Leaves its groups when destroyed.
class OwnSum {
 public:
  // Collective: connects the ranks. settings: rank 0's where all must agree; hosts: of each rank.
  // Throws Error, on all ranks.
  OwnSum(Exchange& exchange, const Settings& settings, const std::vector<std::string>& hosts);

  // Collective; in == out: in place. Throws Error, and the object must then be destroyed, as others
  // may wait for this rank.
  Ways::SumMade allreduce(const void* in, void* out, uint64_t count, DType dtype,
                          const Codec& codec = {});

  // out = this rank's share of the sum of all ranks' in, which may overlap: shares[r] elements are
  // of rank r, one behind the other. Of settings and hosts with can_scatter() alone. As allreduce.
  Ways::SumMade reduce_scatter(const void* in, void* out, const std::vector<uint64_t>& shares,
                               DType dtype, const Codec& codec = {});
  // Of the sums from now on; 0: none.
  void set_timeout(double seconds);
  // The same on all ranks.
  static bool can_scatter(const Settings& settings, const std::vector<std::string>& hosts);

  // While a sum waits, from its thread: it fails, on all ranks, with these words.
  void fail(const std::string& why);

  // The engine's; null: none.
  std::shared_ptr<Group> group() const { return levels_ ? levels_->between() : group_; }

 private:
  uint8_t* scratch(size_t bytes);

  const bool whole_inside_;  // codecs: between hosts alone
  const size_t rank_, block_size_;
  std::unique_ptr<InlineSum> inline_;  // beside group_, which is its own
  // One of these.
  std::unique_ptr<SharedSum> shared_;
  std::unique_ptr<TwoLevels> levels_;
  std::shared_ptr<Group> group_;  // of all ranks
  // Of reduce-scatters. Kept, as new memory comes page by page.
  std::unique_ptr<uint8_t[]> scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace omnihvd
