#include "nccl/union_sum.h"

#include <chrono>

#include "base/error.h"
#include "engine/stats.h"
#include "nccl/call_type.h"
#include "nccl/nvtx.h"

namespace omnihvd {
namespace {

constexpr uint64_t kTimed = 8;  // one of so many sums on the union is timed

void count_call(Way way, const NcclReduction& r, int ranks, uint64_t summed_bytes) {
  const auto size = static_cast<uint64_t>(ranks);
  stats().calls += 1;
  stats().bytes_in += bytes_of(r);
  stats().ring_bytes += ring_bytes(size, bytes_of(r));
  stats().library_bytes += ring_bytes(size, summed_bytes);
  count_way(way, bytes_of(r), std::chrono::steady_clock::now());
}

class Steps {
 public:
  Steps(NcclGroup& group, const UnionSum& sum)
      : group_(group), sum_(sum), way_(*group.union_way()), steps_(way_.steps()) {}

  void queue() {
    const bool unites = sum_.call.capacity > 0;
    Stopwatch& watch = way_.stopwatch();
    group_.or_fail_for_good([&] {
      watch.begin(sum_.call, !unites || sum_.call.number % kTimed == 0, sum_.r.stream);
      steps_.mark(sum_, way_.trailer_of(sum_.call));
    });
    call("ncclAllReduce of the marks", sum_.r.comm, [&] { return steps_.exchange(sum_); });
    group_.or_fail_for_good([&] {
      steps_.unite(sum_);
      watch.looked(sum_.r.stream);
    });
    if (!unites)
      call("ncclAllReduce", sum_.r.comm, [&] { return call_original(sum_.r, group_.size()); });
    for (uint64_t part = 0; part < steps_.parts(sum_); ++part) {
      group_.or_fail_for_good([&] { steps_.gather(sum_, part); });
      steps_.has_levels() ? reduce_on_levels(part) : reduce(part);
      group_.or_fail_for_good([&] { steps_.spread(sum_, part); });
    }
    group_.or_fail_for_good([&] {
      steps_.end(sum_);
      watch.end(sum_.r.stream);
    });
    if (unites) count_call(Way::unite, sum_.r, group_.size(), steps_.summed_bytes(sum_));
  }

 private:
  // Calls NCCL. An abort ends communicators of our own; it waits only briefly for threads that use
  // them.
  template <typename Step>
  void call(const char* what, NcclComm comm, Step step) {
    const std::unique_lock<std::mutex> lock = group_.at_work();
    settle(step(), comm, group_.aborted(), what);
  }

  void reduce(uint64_t part) {
    call("ncclAllReduce of a union", sum_.r.comm, [&] { return steps_.reduce(sum_, part); });
  }

  void reduce_on_levels(uint64_t part) {
    const NcclComm inside = steps_.inside(), between = steps_.between();
    call("ncclReduceScatter inside the hosts", inside,
         [&] { return steps_.scatter_inside(sum_, part, inside); });
    call("ncclAllReduce between the hosts", between,
         [&] { return steps_.reduce_between(sum_, part, between); });
    call("ncclAllGather inside the hosts", inside,
         [&] { return steps_.gather_inside(sum_, part, inside); });
  }

  NcclGroup& group_;
  const UnionSum& sum_;
  UnionWay& way_;
  UnionSteps& steps_;
};

}  // namespace

NcclResult call_original(const NcclReduction& r, int ranks) {
  const NvtxRange range("original", bytes_of(r));
  count_call(Way::original, r, ranks, bytes_of(r));
  return nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, r.comm, r.stream);
}

NcclResult sum_on_union(NcclGroup& group, const UnionSum& sum) {
  try {
    const NvtxRange range("union", bytes_of(sum.r));
    Steps(group, sum).queue();
    return NcclResult::success;
  } catch (const std::exception& error) {
    group.interrupt(error.what());
    return NcclResult::remote_error;
  }
}

}  // namespace omnihvd
