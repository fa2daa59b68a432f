#include "nccl/part_comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "base/awake_clock.h"
#include "base/error.h"

namespace omnihvd {
namespace {

constexpr double kPatience_s = 60;  // for what NCCL does in seconds, or never
constexpr char kMaking = '.', kMade = '+', kFailed = '-';

// A call of ncclCommInitRankConfig. It returns when all ranks of the part have made it: perhaps
// never, if one has failed before. So it runs on a thread that can be abandoned.
struct Making {
  std::mutex mutex;  // guards what follows, but `comm` is NCCL's until done
  bool done = false, unwanted = false;
  NcclResult result = NcclResult::system_error;
  NcclComm comm = nullptr;
  AwakeTimer awake;

  void call(CuContext context, int ranks, const NcclUniqueId& id, int rank) noexcept {
    NcclResult returned = NcclResult::system_error;
    try {
      const CudaScope scope(context);
      const NcclConfig config;
      returned = nccl().comm_init_rank_config(&comm, ranks, id, rank, &config);
      while (returned == NcclResult::in_progress) {  // NCCL_COMM_BLOCKING=0 overrides the config
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        check_nccl(nccl().comm_get_async_error(comm, &returned), "ncclCommGetAsyncError");
      }
    } catch (const Error&) {
      returned = NcclResult::system_error;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    result = returned;
    done = true;
    if (unwanted && result == NcclResult::success) nccl().comm_abort(comm);
  }

  // The communicator is no longer wanted. NCCL's abort frees memory, and so may wait for the
  // device. On the device, the caller's own communicator may hang until its caller, who is in our
  // call, aborts it.
  void give_up() {
    const std::lock_guard<std::mutex> lock(mutex);
    unwanted = true;
    if (done && result == NcclResult::success)
      std::thread([unneeded = comm] { nccl().comm_abort(unneeded); }).detach();
  }

  char state() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (done) return result == NcclResult::success ? kMade : kFailed;
    return awake.seconds() < kPatience_s ? kMaking : kFailed;
  }
};

// Shares the id made by the first rank of a part. Returns, on all ranks, why there is none.
std::string share_id(NcclExchange& exchange, int first, NcclUniqueId* id) {
  const std::string begin = "id ";
  std::string mine;
  if (exchange.rank() == first) {
    mine = begin;
    if (nccl().get_unique_id(id) == NcclResult::success) mine.append(id->bytes, sizeof id->bytes);
  }
  const std::vector<std::string> said = exchange.allgather(mine);
  for (size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank] == begin) return "rank " + std::to_string(rank) + ": ncclGetUniqueId failed";
  std::memcpy(id->bytes, said[size_t(first)].data() + begin.size(), sizeof id->bytes);
  return "";
}

// Returns, on all ranks, why a part was not made; empty: all are made. The ranks repeatedly tell
// each other how far they are: a rank that waits in NCCL for a failed one would not learn of the
// failure there.
std::string wait_for_all(NcclExchange& exchange, Making& making) {
  while (true) {
    const std::vector<std::string> states = exchange.allgather(std::string(1, making.state()));
    bool all = true;
    for (size_t rank = 0; rank < states.size(); ++rank) {
      if (states[rank][0] == kFailed)
        return "rank " + std::to_string(rank) + ": ncclCommInitRankConfig failed, or takes long";
      all = all && states[rank][0] == kMade;
    }
    if (all) return "";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::string PartComm::make(NcclExchange& exchange, const std::vector<int>& ranks) {
  NcclUniqueId id;
  if (const std::string why = share_id(exchange, ranks.front(), &id); !why.empty()) return why;
  const auto rank = int(std::find(ranks.begin(), ranks.end(), exchange.rank()) - ranks.begin());
  const auto making = std::make_shared<Making>();
  std::thread([=, context = exchange.context(), size = int(ranks.size())] {
    making->call(context, size, id, rank);
  }).detach();
  std::string why;
  std::exception_ptr failed;
  try {
    why = wait_for_all(exchange, *making);
  } catch (...) {
    failed = std::current_exception();
  }
  if (!why.empty() || failed) {
    making->give_up();
    new auto(making);  // NCCL may still write to it
    if (failed) std::rethrow_exception(failed);
    return why;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  comm_ = making->comm;
  return "";
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

}  // namespace omnihvd
