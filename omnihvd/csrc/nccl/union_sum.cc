#include "nccl/union_sum.h"

#include <chrono>
#include <memory>
#include <mutex>

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

void queue(NcclGroup& group, const UnionSum& sum) {
  const std::shared_ptr<UnionWay> kept = group.union_way();
  if (!kept) throw Error("the communicator was aborted");
  UnionWay& way = *kept;
  UnionSteps& steps = way.steps();
  Stopwatch& watch = way.stopwatch();
  const bool unites = sum.call.capacity > 0;
  // An abort ends communicators of our own; it waits only briefly for threads that use them.
  const auto call = [&group](const char* what, const auto& comm_now, const auto& step) {
    const std::unique_lock<std::mutex> lock = group.at_work();
    if (group.aborted()) throw Error("the communicator was aborted");
    const NcclComm comm = comm_now();
    settle(step(comm), comm, group.aborted(), what);
  };
  const auto whole = [&sum] { return sum.r.comm; };

  group.or_fail_for_good([&] {
    watch.begin(sum.call, !unites || sum.call.number % kTimed == 0, sum.r.stream);
    steps.mark(sum, way.trailer_of(sum.call));
  });
  call("ncclAllReduce of the marks", whole, [&](NcclComm) { return steps.exchange(sum); });
  group.or_fail_for_good([&] {
    steps.unite(sum);
    watch.looked(sum.r.stream);
  });
  if (!unites)
    call("ncclAllReduce", whole, [&](NcclComm) { return call_original(sum.r, group.size()); });
  for (uint64_t part = 0; part < steps.parts(sum); ++part) {
    group.or_fail_for_good([&] { steps.gather(sum, part); });
    if (steps.has_levels()) {
      const auto inside = [&steps] { return steps.inside(); };
      const auto between = [&steps] { return steps.between(); };
      call("ncclReduceScatter inside the hosts", inside,
           [&](NcclComm comm) { return steps.scatter_inside(sum, part, comm); });
      call("ncclAllReduce between the hosts", between,
           [&](NcclComm comm) { return steps.reduce_between(sum, part, comm); });
      call("ncclAllGather inside the hosts", inside,
           [&](NcclComm comm) { return steps.gather_inside(sum, part, comm); });
    } else {
      call("ncclAllReduce of a union", whole, [&](NcclComm) { return steps.reduce(sum, part); });
    }
    group.or_fail_for_good([&] { steps.spread(sum, part); });
  }
  group.or_fail_for_good([&] {
    steps.end(sum);
    watch.end(sum.r.stream);
  });
  if (unites) count_call(Way::unite, sum.r, group.size(), steps.summed_bytes(sum));
}

}  // namespace

NcclResult call_original(const NcclReduction& r, int ranks) {
  const NvtxRange range("original", bytes_of(r));
  count_call(Way::original, r, ranks, bytes_of(r));
  return nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, r.comm, r.stream);
}

NcclResult sum_on_union(NcclGroup& group, const UnionSum& sum) {
  try {
    const NvtxRange range("union", bytes_of(sum.r));
    queue(group, sum);
    return NcclResult::success;
  } catch (const std::exception& error) {
    group.interrupt(error.what());
    return NcclResult::remote_error;
  }
}

}  // namespace omnihvd
