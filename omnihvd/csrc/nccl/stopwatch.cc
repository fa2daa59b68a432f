#include "nccl/stopwatch.h"

namespace omnihvd {

Stopwatch::~Stopwatch() {
  for (const Measured& one : ring_)
    for (const CuEvent event : {one.begin, one.end})
      if (event != nullptr) cuda().event_destroy(event);
}

void Stopwatch::begin(const UnionCall& call, CuStream stream) {
  if (begun_ - taken_ == kMost) return;
  Measured& one = ring_[begun_ % kMost];
  for (CuEvent* const event : {&one.begin, &one.end})
    if (*event == nullptr) check_cuda(cuda().event_create(event, 0), "cuEventCreate");
  one.call = call;
  check_cuda(cuda().event_record(one.begin, stream), "cuEventRecord");
  running_ = true;
}

void Stopwatch::end(CuStream stream) {
  if (!running_) return;
  running_ = false;
  check_cuda(cuda().event_record(ring_[begun_++ % kMost].end, stream), "cuEventRecord");
}

std::optional<Stopwatch::Time> Stopwatch::take() {
  if (taken_ == begun_) return std::nullopt;
  const Measured& one = ring_[taken_ % kMost];
  if (cuda().event_query(one.end) != CuResult::success) return std::nullopt;
  ++taken_;
  float ms = 0;
  check_cuda(cuda().event_elapsed_time(&ms, one.begin, one.end), "cuEventElapsedTime");
  return Time{one.call, double(ms) / 1000};
}

}  // namespace omnihvd
