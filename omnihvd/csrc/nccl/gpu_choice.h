// Decides which sums on GPUs are faster on the union of their blocks, and on how many levels: from
// a cost model, from measured times (NCCL's among them), and from the sizes of earlier unions.
// Pure. Only rank 0 decides, and tells the others.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "engine/settings.h"
#include "nccl/union_plans.h"

namespace omnihvd {

// Estimated seconds to find the union of so many bytes; and to sum on the union: `summed` bytes are
// in it, and NCCL takes `original` seconds for all bytes. See docs/gpu.md.
double estimate_look(uint64_t bytes);
double estimate_union(uint64_t bytes, uint64_t summed, double original);

class UnionChooser {
 public:
  // levels: off if there is only one; automatic: whichever measures faster.
  UnionChooser(Way setting, Hierarchy levels) : setting_(setting), levels_(levels) {}

  struct Seen {
    uint32_t sum;
    uint64_t bytes, blocks, capacity, united;
  };
  void saw(const Seen& seen);
  enum How { kOriginal, kOneLevel, kTwoLevels };
  void took(uint32_t sum, How how, double seconds);

  // Proposes changes of plans, at most so many. They count as the plan from now on, unless
  // refused() takes them back.
  std::vector<UnionChange> changes(size_t most);
  void refused(const std::vector<UnionChange>& changes);

 private:
  struct Known {
    uint64_t bytes = 0, blocks = 0, planned = 0;
    std::deque<uint64_t> united;  // of the last looks
    bool two_levels = false;      // planned
    std::deque<double> times[3];  // of the last sums, by how they were made
    std::deque<bool> overflowed;  // of the last sums on the union
    uint32_t barred = 0;          // looks until it may be united again
    bool fresh = false;           // there is something new to choose by
  };
  uint64_t wanted(const Known& known) const;
  bool wants_two_levels(const Known& known) const;

  const Way setting_;
  const Hierarchy levels_;
  std::map<uint32_t, Known> known_;
};

}  // namespace omnihvd
