#include "nccl/communicators.h"

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nccl/allreduce.h"

namespace omnihvd {
namespace {

std::mutex mutex;  // guards groups()
std::unordered_map<NcclComm, std::shared_ptr<NcclGroup>>& groups() {
  static auto& map =
      *new std::unordered_map<NcclComm, std::shared_ptr<NcclGroup>>;  // outlives exit
  return map;
}

std::shared_ptr<NcclGroup> take_group(NcclComm comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto taken = groups().extract(comm);
  return taken ? std::move(taken.mapped()) : nullptr;
}

thread_local std::vector<std::shared_ptr<NcclGroup>> aborted;

// A failure of our part must not keep NCCL from its own work: at the end of a process CUDA may end
// before the communicators do.
template <typename Work>
void in_passing(Work work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    log(LogLevel::info, "at the end of a communicator: ", error.what());
  }
}

// Returns false if another thread has aborted the communicator meanwhile: it no longer exists.
bool leave_group(NcclComm comm) {
  const auto group = find_group(comm);
  if (!group) return true;
  in_passing([&] { group->leave(); });
  take_group(comm);
  return !group->aborted();
}

}  // namespace

std::shared_ptr<NcclGroup> find_group(NcclComm comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = groups().find(comm);
  return found == groups().end() ? nullptr : found->second;
}

std::shared_ptr<NcclGroup> find_or_make_group(NcclComm comm) {
  if (auto group = find_group(comm)) return group;
  auto group = std::make_shared<NcclGroup>(comm);
  const std::lock_guard<std::mutex> lock(mutex);
  return groups().emplace(comm, std::move(group)).first->second;
}

NcclResult comm_destroy(NcclComm comm) noexcept {
  return guarded(
      [comm] { return leave_group(comm) ? nccl().comm_destroy(comm) : NcclResult::success; });
}

NcclResult comm_finalize(NcclComm comm) noexcept {
  return guarded([comm] {
    if (!leave_group(comm)) return NcclResult::success;
    return nccl().comm_finalize ? nccl().comm_finalize(comm) : NcclResult::success;
  });
}

void reclaim_aborted() {
  for (const auto& group : std::exchange(aborted, {})) in_passing([&] { group->reclaim(); });
}

NcclResult comm_abort(NcclComm comm) noexcept {
  return guarded([comm] {
    const auto group = take_group(comm);
    if (!group) return nccl().comm_abort(comm);
    const NcclResult result = group->abort([comm] { return nccl().comm_abort(comm); });
    aborted.push_back(group);
    if (!in_group_of_calls()) reclaim_aborted();
    return result;
  });
}

NcclResult comm_get_async_error(NcclComm comm, NcclResult* error) noexcept {
  return guarded([comm, error] {
    const NcclResult result = nccl().comm_get_async_error(comm, error);
    if (result != NcclResult::success || error == nullptr) return result;
    if (is_error(*error)) return result;
    const auto group = find_group(comm);
    if (group && !group->failure().empty()) *error = NcclResult::remote_error;
    return result;
  });
}

NcclResult comm_shrink(NcclComm parent, int* excluded, int n_excluded, NcclComm* child,
                       void* config, int flags) noexcept {
  return guarded([=] {
    const auto group = find_group(parent);
    if (group && (flags & kNcclShrinkAbort)) {
      group->interrupt("the communicator was shrunk");
      group->abort_host();
    }
    if (nccl().comm_shrink == nullptr) throw Error("this NCCL has no ncclCommShrink");
    return nccl().comm_shrink(parent, excluded, n_excluded, child, config, flags);
  });
}

}  // namespace omnihvd
