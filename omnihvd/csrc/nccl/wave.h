// Calls on several communicators, one each, with their steps on unions queued together: only inside
// its groups of calls does NCCL let each rank order communicators as it likes.
#pragma once

#include <memory>
#include <vector>

#include "nccl/group.h"

namespace omnihvd {

// Makes the original call, because it is faster.
NcclResult call_original(const NcclReduction& r, int ranks);

class Wave {
 public:
  bool has(const NcclGroup& group) const;
  void add(std::shared_ptr<NcclGroup> group, const UnionSum& sum) {
    calls_.push_back({std::move(group), sum});
  }
  // Queues all calls. A call that fails has failed for good, and is logged.
  NcclResult run();

 private:
  struct Call {
    std::shared_ptr<NcclGroup> group;
    UnionSum sum;
    UnionSteps& steps() const { return group->union_way()->steps(); }
    bool has(uint64_t part) const { return part < steps().parts(sum); }
  };
  template <typename Step>
  void each(Step step);
  template <typename CommOf, typename Step>
  void together(const char* what, CommOf comm_of, Step step);
  void reduce(uint64_t part);
  void queue();
  Stopwatch* stopwatch() const;
  static void count(const Call& call);

  std::vector<Call> calls_;
};

}  // namespace omnihvd
