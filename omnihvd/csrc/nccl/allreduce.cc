// Intercepts ncclAllReduce: sums and averages that omnihvd knows are made on unions; all other
// calls go to NCCL unchanged.
//
// Every decision depends only on arguments that NCCL requires to be equal on all ranks, on what the
// ranks told each other at a communicator's first call, on rank 0's settings, and on plans that are
// the same for the same call on all ranks (union_plans.h). (A stream must be under capture on all
// ranks, or on none.)
//
// In a group (ncclGroupStart/End), calls that omnihvd makes, or may make, are kept until the group
// ends, and then follow what NCCL has queued. A group that ends with ncclGroupSimulateEnd does
// nothing: NCCL also gets the kept calls.
#include "nccl/allreduce.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/stats.h"
#include "nccl/call_type.h"
#include "nccl/communicators.h"
#include "nccl/union_sum.h"

namespace omnihvd {
namespace {

bool is_captured(const NcclReduction& r, const NcclGroup& group) {
  const CudaScope scope(group.context());  // the context of the default stream
  int status = 0;
  const CuResult answer = cuda().stream_is_capturing(r.stream, &status);
  // Another stream's capture forbids the use of this one, the default stream.
  if (answer == CuResult::stream_capture_implicit) return true;
  check_cuda(answer, "cuStreamIsCapturing");
  return status != 0;
}

void prepare_once() {
  [[maybe_unused]] static const bool prepared = [] {
    try {
      set_log_level(settings_from_environment().log);
    } catch (const Error&) {  // reported when the ranks agree on the settings
    }
    std::atexit([] { log_summary("NCCL"); });
    return true;
  }();
}

thread_local int group_depth = 0;
// Communicators with calls that NCCL makes in this group.
thread_local std::vector<std::pair<NcclComm, std::shared_ptr<NcclGroup>>> left_in_group;

NcclResult leave_to_nccl(const NcclReduction& r, Reason reason) {
  if (group_depth > 0 && r.comm != nullptr) left_in_group.emplace_back(r.comm, find_group(r.comm));
  count_pass(reason, bytes_of(r));
  return nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, r.comm, r.stream);
}

// --- calls in groups

struct Item {
  NcclReduction r;
  std::shared_ptr<NcclGroup> group;
};

thread_local std::vector<Item> queued;

// Runs calls of connected communicators: first NCCL's own calls, all at once; then those on unions.
class Batch {
 public:
  explicit Batch(NcclResult state) : result_(state) {}

  void add(const Item& item) {
    NcclGroup& group = *item.group;
    if (!group.failure().empty()) return note(NcclResult::remote_error);
    if (const Reason reason = group.refusal(bytes_of(item.r)); reason != Reason::none)
      return left_.push_back({item, reason});
    // A tensor that is too large for the marks' memory is summed in slices.
    const std::shared_ptr<UnionWay> way = group.union_way();
    if (!way) return note(NcclResult::remote_error);
    const size_t width = width_of(item.r.type), most = way->steps().most_elements();
    for (size_t begin = 0; begin < item.r.count; begin += most) {
      NcclReduction slice = item.r;
      slice.in = static_cast<const char*>(item.r.in) + begin * width;
      slice.out = static_cast<char*>(item.r.out) + begin * width;
      slice.count = std::min(most, item.r.count - begin);
      plan({slice, item.group});
    }
  }

  NcclResult run() {
    leave();
    for (const auto& [group, sum] : sums_) note(sum_on_union(*group, sum));
    left_.clear(), sums_.clear(), planned_.clear();
    return result_;
  }

 private:
  // A plan may need the union of a call kBehind before: that one must have been queued.
  void plan(const Item& item) {
    NcclGroup& group = *item.group;
    if (planned_[&group]++ == UnionPlans::kBehind) run(), planned_[&group] = 1;
    try {
      const DType dtype = *dtype_of(item.r.type);
      std::optional<UnionCall> call;
      const std::shared_ptr<UnionWay> way = group.union_way();
      if (!way) throw Error("the communicator was aborted");
      group.or_fail_for_good([&] { call = way->next(item.r, dtype, group.exchange()); });
      if (call->look)
        sums_.push_back({item.group, {item.r, dtype, *call}});
      else
        left_.push_back({item, Reason::none});
    } catch (const std::exception&) {  // logged, and kept
      note(NcclResult::remote_error);
    }
  }
  void note(NcclResult r) {
    if (!is_error(result_) && r != NcclResult::success) result_ = r;
  }
  void leave() {
    if (left_.empty()) return;
    if (left_.size() > 1) note(nccl().group_start());
    NcclResult ended = NcclResult::success;
    for (const auto& [item, reason] : left_) {
      ended = reason != Reason::none ? leave_to_nccl(item.r, reason)
                                     : call_original(item.r, item.group->size());
      note(ended);
    }
    if (left_.size() > 1) note(ended = nccl().group_end());
    if (sums_.empty()) return;
    for (const auto& [item, reason] : left_)
      settle(ended, item.r.comm, item.group->aborted(), "ncclGroupEnd");
  }

  NcclResult result_;
  std::vector<std::pair<Item, Reason>> left_;  // no reason: NCCL is faster
  std::vector<std::pair<std::shared_ptr<NcclGroup>, UnionSum>> sums_;
  std::map<const NcclGroup*, uint64_t> planned_;
};

// Runs one thread's calls that end together. `state`: NCCL's result for the communicators in the
// group. In NCCL's groups each rank may have an order of its own, and the communicators may share a
// stream: the calls run in an order of communicators that is the same on all ranks.
NcclResult run_all(std::vector<Item> items, NcclResult state) {
  std::vector<NcclGroup::Begun> fresh;
  for (const auto& [r, group] : items) {
    // NCCL must queue its own work before ours, as on the other ranks.
    settle(state, r.comm, group->aborted(), "ncclGroupEnd");
    if (group->connected()) continue;
    const auto is_own = [&own = group](const auto& other) { return other.group == own; };
    const auto found = std::find_if(fresh.begin(), fresh.end(), is_own);
    if (found == fresh.end())
      fresh.push_back({group, bytes_of(r)});
    else
      found->bytes = std::max(found->bytes, bytes_of(r));
  }
  NcclGroup::begin(fresh);
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.group->order() < b.group->order();
  });
  Batch batch(state);
  for (const Item& item : items) batch.add(item);
  return batch.run();
}

}  // namespace

NcclResult allreduce(const NcclReduction& r) noexcept {
  prepare_once();
  try {
    if (const Reason reason = refusal_of(r); reason != Reason::none)
      return leave_to_nccl(r, reason);
    if (find_group(r.comm) == nullptr)
      if (const Reason reason = unasked(); reason != Reason::none) return leave_to_nccl(r, reason);
    const auto group = find_or_make_group(r.comm);
    if (group->size() < 2) return leave_to_nccl(r, Reason::one_rank);
    if (is_captured(r, *group)) return leave_to_nccl(r, Reason::captured);
    if (group->agreed() && group->failure().empty())
      if (const Reason reason = group->refusal(bytes_of(r)); reason != Reason::none)
        return leave_to_nccl(r, reason);
    if (group_depth > 0) {
      queued.push_back({r, group});
      return NcclResult::success;
    }
    return run_all({{r, group}}, NcclResult::success);
  } catch (const std::exception& error) {
    log(LogLevel::error, "ncclAllReduce failed: ", error.what());
    return NcclResult::system_error;
  }
}

bool in_group_of_calls() { return group_depth > 0; }

NcclResult group_start() noexcept {
  return guarded([] {
    const NcclResult result = nccl().group_start();
    if (result == NcclResult::success) ++group_depth;
    return result;
  });
}

NcclResult group_end() noexcept {
  return guarded([] {
    const NcclResult result = nccl().group_end();
    if (group_depth > 0) --group_depth;
    if (group_depth > 0) return result;
    reclaim_aborted();
    const std::vector<Item> calls = std::exchange(queued, {});
    const auto left = std::exchange(left_in_group, {});
    if (calls.empty()) return result;
    // Non-blocking communicators must queue their remaining work before ours, as on the other
    // ranks.
    static const std::atomic<bool> never{false};
    if (result == NcclResult::in_progress)
      for (const auto& [comm, group] : left)
        settle(result, comm, group ? group->aborted() : never, "ncclGroupEnd");
    if (is_error(result)) return result;
    return run_all(calls, result);
  });
}

NcclResult group_simulate_end(void* info) noexcept {
  return guarded([info] {
    if (nccl().group_simulate_end == nullptr) throw Error("this NCCL has no ncclGroupSimulateEnd");
    if (group_depth == 1) {
      const auto calls = std::exchange(queued, {});
      for (const Item& call : calls) leave_to_nccl(call.r, Reason::simulated);
      left_in_group.clear();
    }
    const NcclResult result = nccl().group_simulate_end(info);
    if (group_depth > 0) --group_depth;
    if (group_depth == 0) reclaim_aborted();
    return result;
  });
}

}  // namespace omnihvd
