#include "shims/nccl/part_comm.h"

#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"

namespace omnihvd {
namespace {

// A call of ncclCommSplit, which returns when all ranks have made it: never, perhaps, where one has
// failed before. So it is made on a thread that can be left alone with it.
struct Split {
  std::mutex mutex;  // guards what follows, but `comm` is NCCL's until done
  bool done = false, unwanted = false;
  NcclResult result = NcclResult::system_error;
  NcclComm comm = nullptr;

  void call(NcclComm parent, CuContext context, int color, int key) noexcept {
    NcclResult returned = NcclResult::system_error;
    try {
      const CudaScope scope(context);
      returned = nccl().comm_split(parent, color, key, &comm, nullptr);
    } catch (const Error&) {
    }
    const std::lock_guard<std::mutex> lock(mutex);
    result = returned;
    done = true;
    if (unwanted && returned == NcclResult::success) nccl().comm_abort(comm);
  }
  bool over() {
    const std::lock_guard<std::mutex> lock(mutex);
    return done;
  }
};

}  // namespace

void PartComm::split(const NcclExchange& exchange, int color, int key) {
  const auto split = std::make_shared<Split>();
  std::thread([=, parent = exchange.comm(), context = exchange.context()] {
    split->call(parent, context, color, key);
  }).detach();
  try {
    exchange.wait_until([&] { return split->over(); });
    settle(split->result, exchange.comm(), exchange.aborted(), "ncclCommSplit");
    if (split->result == NcclResult::in_progress)
      settle(split->result, split->comm, exchange.aborted(), "ncclCommSplit");
  } catch (...) {
    const std::lock_guard<std::mutex> lock(split->mutex);
    split->unwanted = true;
    if (split->done && split->result == NcclResult::success) nccl().comm_abort(split->comm);
    new auto(split);  // NCCL may write there for as long as it likes
    throw;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  comm_ = split->comm;
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
