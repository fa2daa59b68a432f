// Which sums on GPUs pay on the union of their blocks: from a model of what that costs, from
// NCCL's own times, and from what unions there were. Pure; rank 0's alone, which tells the others.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "session/settings.h"
#include "shims/nccl/union_plans.h"

namespace omnihvd {

struct SumTimes {  // seconds, as measured; 0: not yet
  double original = 0, united = 0;
};

// What it is estimated to take to find the union of so many bytes; and to sum it, if `summed` are,
// where NCCL takes so long for all of them. See docs/gpu.md.
double estimate_look(uint64_t bytes);
double estimate_union(uint64_t bytes, uint64_t summed, double original);

class UnionChooser {
 public:
  explicit UnionChooser(Way setting) : setting_(setting) {}

  struct Seen {
    uint32_t sum;
    uint64_t bytes, blocks, capacity, united;
  };
  void saw(const Seen& seen);
  void took(uint32_t sum, bool united, double seconds);

  // What is to change, at most so much at a time. What is returned is taken for the plan from now
  // on; refused() says that it is not.
  std::vector<UnionChange> changes(size_t most);
  void refused(const std::vector<UnionChange>& changes);

 private:
  struct Known {
    uint64_t bytes = 0, blocks = 0, planned = 0;
    std::deque<uint64_t> united;  // of the last looks
    std::deque<double> times[2];  // of the last sums: NCCL's, and on the union
    std::deque<bool> overflowed;  // of the last sums on the union
    uint32_t barred = 0;          // looks until it may be united again
    bool fresh = false;           // there is something new to choose by
  };
  uint64_t wanted(const Known& known) const;

  const Way setting_;
  std::map<uint32_t, Known> known_;
};

}  // namespace omnihvd
