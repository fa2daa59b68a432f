#include "nccl/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/awake_clock.h"
#include "base/error.h"
#include "base/log.h"
#include "communicator/meeting.h"

namespace omnihvd {
namespace {

constexpr double kFirstWarning_s = 10;

// Streams of one priority share few hardware queues, in which a stream that waits holds up the
// others. Streams of ranks that join two communicators at once must not hold up NCCL's.
CuStream urgent_stream() {
  int least = 0, greatest = 0;
  check_cuda(cuda().ctx_get_stream_priority_range(&least, &greatest),
             "cuCtxGetStreamPriorityRange");
  CuStream stream = nullptr;
  check_cuda(cuda().stream_create_with_priority(&stream, kCuStreamNonBlocking, greatest),
             "cuStreamCreateWithPriority");
  return stream;
}

}  // namespace

void settle(NcclResult result, NcclComm comm, const std::atomic<bool>& aborted, const char* what) {
  AwakeTimer waited;
  while (result == NcclResult::in_progress) {
    if (aborted) throw Error("the communicator was aborted");
    Waiting::pause_after(waited.seconds());
    check_nccl(nccl().comm_get_async_error(comm, &result), "ncclCommGetAsyncError");
  }
  check_nccl(result, what);
}

NcclExchange::NcclExchange(NcclComm comm, const std::atomic<bool>& aborted)
    : comm_(comm), aborted_(aborted) {
  check_nccl(nccl().comm_user_rank(comm, &rank_), "ncclCommUserRank");
  check_nccl(nccl().comm_count(comm, &size_), "ncclCommCount");
  check_nccl(nccl().comm_device(comm, &device_), "ncclCommCuDevice");
  context_ = primary_context(device_);
}

void NcclExchange::set_patience(const Settings& settings) {
  stall_warning_s_ = settings.stall_warning_s;
  timeout_s_ = settings.timeout_s;
}

std::vector<std::string> NcclExchange::allgather(const std::string& mine) {
  const uint64_t size = mine.size();
  std::vector<uint64_t> sizes;
  for (const std::string& bytes : gather_equal({reinterpret_cast<const char*>(&size), sizeof size}))
    std::memcpy(&sizes.emplace_back(), bytes.data(), sizeof size);
  std::string padded = mine;
  padded.resize(std::max<uint64_t>(*std::max_element(sizes.begin(), sizes.end()), 1));
  std::vector<std::string> gathered = gather_equal(padded);
  for (size_t rank = 0; rank < sizes.size(); ++rank) gathered[rank].resize(sizes[rank]);
  return gathered;
}

// Gathers equally many bytes from each rank.
std::vector<std::string> NcclExchange::gather_equal(const std::string& mine) {
  if (aborted_) throw Error("the communicator was aborted");
  begin(mine);
  const size_t bytes = mine.size();
  const CuAddress gathered = buffers_.device.address() + bytes;
  settle(
      nccl().all_gather(reinterpret_cast<void*>(buffers_.device.address()),
                        reinterpret_cast<void*>(gathered), bytes, NcclType::uint8, comm_, stream_),
      comm_, aborted_, "ncclAllGather");
  const CudaScope scope(context_);
  check_cuda(cuda().memcpy_dtoh_async(buffers_.host.data(), gathered, bytes * size_, stream_),
             "cuMemcpyDtoHAsync");
  wait();
  std::vector<std::string> all;
  for (int rank = 0; rank < size_; ++rank)
    all.emplace_back(reinterpret_cast<const char*>(buffers_.host.data()) + rank * bytes, bytes);
  return all;
}

// Copies this rank's bytes to the device. Received bytes will follow them.
void NcclExchange::begin(const std::string& mine) {
  const CudaScope scope(context_);
  if (stream_ == nullptr) stream_ = urgent_stream();
  const size_t needed = mine.size() * (size_ + 1);
  if (needed > room_) {
    const size_t room = std::max<size_t>(needed, 65536);
    outgrown_.push_back(std::exchange(buffers_, Buffers{PinnedMemory(room), DeviceMemory(room)}));
    room_ = room;
  }
  std::memcpy(buffers_.host.data(), mine.data(), mine.size());
  check_cuda(cuda().memcpy_htod_async(buffers_.device.address(), buffers_.host.data(), mine.size(),
                                      stream_),
             "cuMemcpyHtoDAsync");
}

void NcclExchange::wait() const {
  wait_until(
      "the ranks of a communicator to begin their first ncclAllReduce. Did one fail, or does one "
      "not use omnihvd? (Import omnihvd on every rank before the communicator is used.) Does one "
      "wait for what this rank does after its call? (These calls return when all ranks have made "
      "them, and so does the first large sum.)",
      [this] {
        const CuResult state = cuda().stream_query(stream_);
        if (state != CuResult::not_ready) check_cuda(state, "an exchange over NCCL");
        return state == CuResult::success;
      });
}

bool NcclExchange::idle() const {
  return stream_ == nullptr || cuda().stream_query(stream_) == CuResult::success;
}

void NcclExchange::wait_until(const char* what, const std::function<bool()>& over) const {
  Waiting waiting({std::min(stall_warning_s_, kFirstWarning_s), timeout_s_}, stall_warning_s_);
  const auto message = [&] {
    return "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " waited " +
           std::to_string(static_cast<long>(waiting.seconds())) + " s for " + what;
  };
  while (!over()) {
    if (aborted_) throw Error("the communicator was aborted");
    NcclResult failure = NcclResult::success;
    check_nccl(nccl().comm_get_async_error(comm_, &failure), "ncclCommGetAsyncError");
    check_nccl(failure, "an exchange over NCCL");
    if (waiting.over()) throw Error(message());
    if (waiting.warn()) log(LogLevel::warning, message());
    waiting.pause();
  }
}

void NcclExchange::release() {
  if (stream_ != nullptr) cuda().stream_destroy(std::exchange(stream_, nullptr));
  buffers_ = Buffers();
  outgrown_.clear();
  room_ = 0;
}

void NcclExchange::give_up() {
  if (room_ > 0) outgrown_.push_back(std::exchange(buffers_, Buffers()));
  if (!outgrown_.empty()) new auto(std::move(outgrown_));
  outgrown_.clear();
  stream_ = nullptr;
  room_ = 0;
}

}  // namespace omnihvd
