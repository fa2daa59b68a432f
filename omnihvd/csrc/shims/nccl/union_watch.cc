#include "shims/nccl/union_watch.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "shims/nccl/hardware_queues.h"

namespace omnihvd {
namespace {

constexpr double kQueuePatience_s = 10;

}  // namespace

void UnionWatch::look(const UnionProgress& now, uint64_t elements) {
  if (!(now == seen_)) {
    seen_ = now;
    since_ = Clock::now();
    next_warning_s_ = settings_.stall_warning_s;
    return;
  }
  const double waited_s = std::chrono::duration<double>(Clock::now() - since_).count();
  const bool limited = settings_.timeout_s > 0;
  if (now.waits == UnionProgress::Waits::for_kernel) {
    const double patience_s =
        limited ? std::min(kQueuePatience_s, settings_.timeout_s) : kQueuePatience_s;
    if (waited_s > patience_s)
      throw Error("a kernel did not begin for " + std::to_string(long(waited_s)) +
                  " s: its stream shares a hardware queue with one that waits for it. Set "
                  "CUDA_DEVICE_MAX_CONNECTIONS=32, or OMNIHVD_GPU=stream");
  }
  const bool for_input = now.waits == UnionProgress::Waits::for_input;
  if (limited && waited_s > settings_.timeout_s && !for_input)
    throw Error("a sum of " + std::to_string(elements) +
                " elements waited too long for the other ranks (OMNIHVD_TIMEOUT), or its stream "
                "shares a hardware queue with one that waits for it");
  if (settings_.stall_warning_s <= 0 || waited_s <= next_warning_s_) return;
  if (for_input && !streams_share_queues()) return;  // it may well be computed so long
  log(LogLevel::warning, "a sum of ", elements, " elements has waited ", long(waited_s),
      for_input ? " s for what is before it on its stream, or in that stream's hardware queue"
                : " s for other ranks of its communicator");
  next_warning_s_ = waited_s + settings_.stall_warning_s;
}

}  // namespace omnihvd
