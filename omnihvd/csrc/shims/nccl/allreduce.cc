// ncclAllReduce, taken over: sums and averages that we know are united or streamed, all else goes
// to NCCL untouched.
//
// The functions with NCCL's names are for any program (LD_PRELOAD), those with omnihvd_ before them
// for PyTorch and Horovod, by the GOT hook. Every decision depends on arguments alone that NCCL
// wants equal on all ranks, on what the ranks told each other at a communicator's first call, and
// on rank 0's settings: all ranks decide alike. (That a stream is being captured has to be so on
// all ranks, or on none.)
//
// In a group (ncclGroupStart/End), calls that are taken, or may be, are kept until its end, and
// follow what NCCL has queued then. A group that ends with ncclGroupSimulateEnd does nothing: what
// was kept is NCCL's, too.
#include "shims/nccl/allreduce.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "session/stats.h"
#include "shims/nccl/call_type.h"
#include "shims/nccl/communicators.h"
#include "shims/nccl/nvtx.h"

namespace omnihvd {
namespace {

void prepare_once() {
  static const bool prepared = [] {
    try {
      set_log_level(settings_from_environment().log);
    } catch (const Error&) {  // reported where the ranks agree on the settings
    }
    std::atexit([] { log_summary("NCCL"); });
    return true;
  }();
  (void)prepared;
}

// --- one call

bool is_captured(const NcclReduction& r, const NcclGroup& group) {
  const CudaScope scope(group.context());  // whose default stream is meant
  int status = 0;
  const CuResult answer = cuda().stream_is_capturing(r.stream, &status);
  // Another stream's capture forbids to use this one, the default one.
  if (answer == CuResult::stream_capture_implicit) return true;
  check_cuda(answer, "cuStreamIsCapturing");
  return status != 0;
}

thread_local int group_depth = 0;
// Communicators of calls that NCCL has in this group.
thread_local std::vector<std::pair<NcclComm, std::shared_ptr<NcclGroup>>> left_in_group;

NcclResult leave_to_nccl(const NcclReduction& r, Reason reason) {
  if (group_depth > 0 && r.comm != nullptr) left_in_group.emplace_back(r.comm, find_group(r.comm));
  count_pass(reason, bytes_of(r));
  return nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, r.comm, r.stream);
}

// By NCCL, though it could be taken: it is faster.
NcclResult call_original(const NcclReduction& r, int ranks) {
  const uint64_t sent = ring_bytes(static_cast<uint64_t>(ranks), bytes_of(r));
  stats().calls += 1;
  stats().bytes_in += bytes_of(r);
  stats().ring_bytes += sent;
  stats().library_bytes += sent;
  count_way(Way::original, bytes_of(r), std::chrono::steady_clock::now());
  return nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, r.comm, r.stream);
}

NcclResult run_part(NcclGroup& group, const NcclReduction& r) {
  const DType dtype = *dtype_of(r.type);
  switch (group.next_way(r, dtype)) {
    case Way::original: {
      const NvtxRange range("original", bytes_of(r));
      return call_original(r, group.size());
    }
    case Way::stream: {
      const NvtxRange range("stream", bytes_of(r));
      if (!group.make_room(r, dtype)) return leave_to_nccl(r, Reason::memory);
      group.stream(r, dtype);
      return NcclResult::success;
    }
    default: {
      const NvtxRange range("union", bytes_of(r));
      group.unite(r, dtype);
      return NcclResult::success;
    }
  }
}

// Tensors that are too large for the marks' memory: one part after the other.
NcclResult run_parts(NcclGroup& group, const NcclReduction& r) {
  const uint64_t most = group.most_elements(), width = width_of(r.type);
  NcclResult result = NcclResult::success;
  for (uint64_t done = 0; done < r.count;) {
    NcclReduction part = r;
    part.in = static_cast<const char*>(r.in) + done * width;
    part.out = static_cast<char*>(r.out) + done * width;
    part.count = std::min(most, r.count - done);
    done += part.count;
    const NcclResult of_part = run_part(group, part);
    if (of_part != NcclResult::success) result = of_part;
    if (of_part != NcclResult::success && of_part != NcclResult::in_progress) break;
  }
  return result;
}

// Of a call that is taken, on a communicator that is connected.
NcclResult run(NcclGroup& group, const NcclReduction& r) {
  if (!group.failure().empty()) return NcclResult::remote_error;
  try {
    if (const Reason reason = group.refusal(bytes_of(r)); reason != Reason::none)
      return leave_to_nccl(r, reason);
    return run_parts(group, r);
  } catch (const std::exception&) {  // logged, and kept
    return NcclResult::remote_error;
  }
}

// --- calls in groups

struct Item {
  NcclReduction r;
  std::shared_ptr<NcclGroup> group;
};

thread_local std::vector<Item> queued;

// Runs calls of one thread that end together. `state`: NCCL's, of the communicators in the group.
NcclResult run_all(std::vector<Item> items, NcclResult state) {
  std::vector<std::shared_ptr<NcclGroup>> fresh;
  for (const auto& [r, group] : items) {
    // What NCCL still has to queue must be before ours, as it is on the other ranks.
    settle(state, r.comm, group->aborted(), "ncclGroupEnd");
    if (!group->agreed() && std::find(fresh.begin(), fresh.end(), group) == fresh.end())
      fresh.push_back(group);
  }
  if (!fresh.empty()) NcclGroup::agree(fresh);

  // Those left to NCCL first; then those taken, in an order of communicators that is the same on
  // all ranks, as NCCL's groups allow each rank one of its own.
  const auto taken = std::stable_partition(items.begin(), items.end(), [](const Item& item) {
    return item.group->failure().empty() && item.group->refusal(bytes_of(item.r)) != Reason::none;
  });
  NcclResult result = state;
  const auto note = [&result](NcclResult r) {
    const bool bad = result != NcclResult::success && result != NcclResult::in_progress;
    if (!bad && r != NcclResult::success) result = r;
  };
  if (taken != items.begin()) {
    note(nccl().group_start());
    for (auto item = items.begin(); item != taken; ++item)
      note(leave_to_nccl(item->r, item->group->refusal(bytes_of(item->r))));
    const NcclResult ended = nccl().group_end();
    note(ended);
    for (auto item = items.begin(); item != taken && taken != items.end(); ++item)
      settle(ended, item->r.comm, item->group->aborted(), "ncclGroupEnd");
  }
  std::stable_sort(taken, items.end(), [](const Item& a, const Item& b) {
    return a.group->order() < b.group->order();
  });
  for (auto item = taken; item != items.end(); ++item)
    if (!item->group->connected() && item->group->failure().empty()) item->group->connect();
  for (auto item = taken; item != items.end(); ++item) note(run(*item->group, item->r));
  return result;
}

}  // namespace

NcclResult allreduce(const NcclReduction& r) noexcept {
  prepare_once();
  try {
    if (const Reason reason = refusal_of(r); reason != Reason::none)
      return leave_to_nccl(r, reason);
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
    if (group->connected()) return run(*group, r);
    return run_all({{r, group}}, NcclResult::success);
  } catch (const std::exception& error) {
    log(LogLevel::error, "ncclAllReduce failed: ", error.what());
    return NcclResult::system_error;
  }
}

bool in_group_of_calls() { return group_depth > 0; }

// --- the calls in between

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
    std::vector<Item> calls = std::exchange(queued, {});
    const auto left = std::exchange(left_in_group, {});
    if (calls.empty()) return result;
    // What non-blocking communicators have still to queue must be before ours, as on other ranks.
    static const std::atomic<bool> never{false};
    if (result == NcclResult::in_progress)
      for (const auto& [comm, group] : left)
        settle(result, comm, group ? group->aborted() : never, "ncclGroupEnd");
    if (result != NcclResult::success && result != NcclResult::in_progress) return result;
    return run_all(std::move(calls), result);
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
