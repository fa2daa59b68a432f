#include "shims/nccl/part_comm.h"

#include <utility>

#include "base/error.h"
#include "shims/nccl/exchange.h"

namespace omnihvd {

void PartComm::split(NcclComm parent, int color, int key, const std::atomic<bool>& aborted) {
  NcclComm comm = nullptr;
  const NcclResult begun = nccl().comm_split(parent, color, key, &comm, nullptr);
  settle(begun, parent, aborted, "ncclCommSplit");
  if (begun == NcclResult::in_progress) settle(begun, comm, aborted, "ncclCommSplit");
  const std::lock_guard<std::mutex> lock(mutex_);
  comm_ = comm;
}

NcclResult PartComm::async_error() {
  const std::lock_guard<std::mutex> lock(mutex_);
  NcclResult error = NcclResult::success;
  if (comm_ != nullptr) nccl().comm_get_async_error(comm_, &error);
  return error;
}

NcclComm PartComm::get() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) throw Error("the communicator was aborted");
  return comm_;
}

NcclComm PartComm::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(comm_, nullptr);
}

void PartComm::destroy() {
  if (NcclComm comm = take()) nccl().comm_destroy(comm);
}

void PartComm::abort() {
  if (NcclComm comm = take()) nccl().comm_abort(comm);
}

}  // namespace omnihvd
