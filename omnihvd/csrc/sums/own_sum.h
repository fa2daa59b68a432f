// How the ranks of a communicator sum by omnihvd alone: through an aggregator in the data path, if
// they have one (OMNIHVD_INLINE); all on one host over shared memory; on several with as many ranks
// each in two levels; else streaming.
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

  // The engine's; null: none.
  std::shared_ptr<Group> group() const { return levels_ ? levels_->between() : group_; }

 private:
  const bool whole_inside_;            // codecs: between hosts alone
  std::unique_ptr<InlineSum> inline_;  // beside group_, which is its own
  // One of these.
  std::unique_ptr<SharedSum> shared_;
  std::unique_ptr<TwoLevels> levels_;
  std::shared_ptr<Group> group_;  // of all ranks
};

}  // namespace omnihvd
