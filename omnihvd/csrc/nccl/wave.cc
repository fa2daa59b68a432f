#include "nccl/wave.h"

#include <algorithm>
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

}  // namespace

NcclResult call_original(const NcclReduction& r, int ranks) {
  const NvtxRange range("original", bytes_of(r));
  count_call(Way::original, r, ranks, bytes_of(r));
  return nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, r.comm, r.stream);
}

bool Wave::has(const NcclGroup& group) const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [&](const Call& call) { return call.group.get() == &group; });
}

template <typename Step>
void Wave::each(Step step) {
  for (const Call& call : calls_) call.group->or_fail_for_good([&] { step(call); });
}

// Makes the calls that have a communicator, in one NCCL group. An abort ends communicators of our
// own; it waits only briefly for threads that use them.
template <typename CommOf, typename Step>
void Wave::together(const char* what, CommOf comm_of, Step step) {
  std::vector<std::pair<const Call*, NcclComm>> all;
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const Call& call : calls_) {
    locks.push_back(call.group->at_work());
    if (NcclComm comm = comm_of(call)) all.emplace_back(&call, comm);
  }
  if (all.empty()) return;
  check_nccl(nccl().group_start(), "ncclGroupStart");
  NcclResult failed = NcclResult::success;
  for (const auto& [call, comm] : all) {
    const NcclResult result = step(*call, comm);
    if (result != NcclResult::success && result != NcclResult::in_progress) failed = result;
  }
  const NcclResult ended = nccl().group_end();
  check_nccl(failed, what);
  for (const auto& [call, comm] : all) settle(ended, comm, call->group->aborted(), what);
}

// Queues in an order of communicators that is the same on all ranks, because some may share a
// stream.
NcclResult Wave::run() {
  std::stable_sort(calls_.begin(), calls_.end(), [](const Call& a, const Call& b) {
    return a.group->order() < b.group->order();
  });
  try {
    queue();
    return NcclResult::success;
  } catch (const std::exception& error) {
    for (const Call& call : calls_) call.group->interrupt(error.what());
    return NcclResult::remote_error;
  }
}

// The stopwatch for timed sums: those that NCCL makes during a look, and some on the union, but
// none that shares a group.
Stopwatch* Wave::stopwatch() const {
  const UnionCall& call = calls_.front().sum.call;
  const bool timed = call.capacity == 0 || call.number % kTimed == 0;
  if (calls_.size() > 1 || !timed || call.sum == UnionPlans::kNone) return nullptr;
  return calls_.front().group->union_way()->stopwatch();
}

// Levels have NCCL groups of their own: NCCL does not allow blocking communicators, like ours, in a
// group with others.
void Wave::reduce(uint64_t part) {
  const auto two_levels = [part](const Call& call) {
    return call.sum.call.two_levels && call.has(part);
  };
  const auto inside = [&](const Call& call) {
    return two_levels(call) ? call.steps().inside() : nullptr;
  };
  const auto between = [&](const Call& call) {
    return two_levels(call) ? call.steps().between() : nullptr;
  };
  together("ncclReduceScatter inside the hosts", inside, [&](const Call& call, NcclComm comm) {
    return call.steps().scatter_inside(call.sum, part, comm);
  });
  together("ncclAllReduce between the hosts", between, [&](const Call& call, NcclComm comm) {
    return call.steps().reduce_between(call.sum, part, comm);
  });
  together("ncclAllGather inside the hosts", inside, [&](const Call& call, NcclComm comm) {
    return call.steps().gather_inside(call.sum, part, comm);
  });
  const auto one_level = [&](const Call& call) {
    const bool original = part == 0 && call.sum.call.capacity == 0;
    return original || (call.has(part) && !two_levels(call)) ? call.sum.r.comm : nullptr;
  };
  together("ncclAllReduce", one_level, [&](const Call& call, NcclComm) {
    return call.has(part) ? call.steps().reduce(call.sum, part)
                          : call_original(call.sum.r, call.group->size());
  });
}

void Wave::queue() {
  const NvtxRange range("union", bytes_of(calls_.front().sum.r));
  Stopwatch* const watch = stopwatch();
  const UnionSum& first = calls_.front().sum;
  each([](const Call& call) { call.steps().mark(call.sum); });
  together(
      "ncclAllGather of the marks", [](const Call& call) { return call.sum.r.comm; },
      [](const Call& call, NcclComm) { return call.steps().exchange(call.sum); });
  each([](const Call& call) { call.steps().unite(call.sum); });
  // Timing begins after a step that needs all ranks, so that a late rank does not count.
  if (watch != nullptr) each([&](const Call&) { watch->begin(first.call, first.r.stream); });
  uint64_t parts = 1;
  for (const Call& call : calls_) parts = std::max(parts, call.steps().parts(call.sum));
  for (uint64_t part = 0; part < parts; ++part) {
    each([&](const Call& call) {
      if (call.has(part)) call.steps().gather(call.sum, part);
    });
    reduce(part);
    each([&](const Call& call) {
      if (call.has(part)) call.steps().spread(call.sum, part);
    });
  }
  each([](const Call& call) {
    call.steps().end(call.sum);
    count(call);
  });
  if (watch != nullptr) each([&](const Call&) { watch->end(first.r.stream); });
}

void Wave::count(const Call& call) {
  if (call.sum.call.capacity == 0) return;
  count_call(Way::unite, call.sum.r, call.group->size(), call.steps().summed_bytes(call.sum));
}

}  // namespace omnihvd
