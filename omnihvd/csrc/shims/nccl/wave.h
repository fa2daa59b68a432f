// Calls on several communicators, one each, whose steps on unions are queued together: NCCL lets
// each rank order communicators as it likes only inside its groups of calls.
#pragma once

#include <memory>
#include <vector>

#include "shims/nccl/group.h"

namespace omnihvd {

// The call as it stood, though it could be taken: it is faster.
NcclResult call_original(const NcclReduction& r, int ranks);

class Wave {
 public:
  bool has(const NcclGroup& group) const;
  void add(std::shared_ptr<NcclGroup> group, const UnionSum& sum) {
    calls_.push_back({std::move(group), sum});
  }
  // Queues all. What fails has failed for good, and is logged.
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
