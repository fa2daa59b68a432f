#include "shims/nccl/hardware_queues.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_set>

#include "base/log.h"

namespace omnihvd {
namespace {

constexpr int kDefault = 8;
std::atomic<bool> shared{false};
std::mutex mutex;                                                       // guards seen()
std::map<int, std::unordered_set<CuStream>>& seen() {                   // by priority
  static auto& map = *new std::map<int, std::unordered_set<CuStream>>;  // outlives exit
  return map;
}

}  // namespace

int hardware_queues() {
  const char* const setting = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return setting == nullptr ? 0 : std::atoi(setting);
}

void warn_of_few_queues() {
  static std::once_flag once;
  const int queues = hardware_queues();
  if (queues <= 0 || queues >= kDefault) return;
  std::call_once(once, [queues] {
    log(LogLevel::warning, "CUDA_DEVICE_MAX_CONNECTIONS=", queues,
        ": a stream that waits for a sum holds up all others of its hardware queue. Set it to 32, "
        "if nothing else needs it so low");
  });
}

void note_stream(CuStream stream, int priority) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (shared) return;
  const auto queues = static_cast<size_t>(hardware_queues() > 0 ? hardware_queues() : kDefault);
  auto& streams = seen()[priority];
  if (!streams.insert(stream).second || streams.size() <= queues) return;
  shared = true;
  log(LogLevel::warning, "sums on GPUs use ", streams.size(), " streams, which share ", queues,
      " hardware queues: a sum that waits for other ranks holds up those that share its queue, for "
      "good if ranks call them in different orders. Use fewer streams and communicators",
      queues < 32 ? ", or set CUDA_DEVICE_MAX_CONNECTIONS=32" : "");
}

void forget_stream(CuStream stream, int priority) {
  const std::lock_guard<std::mutex> lock(mutex);
  seen()[priority].erase(stream);
}

bool streams_share_queues() { return shared; }

}  // namespace omnihvd
