#include "nccl/stopwatch.h"

namespace omnihvd {
namespace {

void record(CuEvent event, CuStream stream) {
  check_cuda(cuda().event_record(event, stream), "cuEventRecord");
}

uint64_t between(CuEvent begin, CuEvent end) {
  float ms = 0;
  check_cuda(cuda().event_elapsed_time(&ms, begin, end), "cuEventElapsedTime");
  return uint64_t(double(ms) * 1e6);
}

}  // namespace

Stopwatch::~Stopwatch() {
  for (const Measured& one : ring_)
    for (const CuEvent event : one.events)
      if (event != nullptr) cuda().event_destroy(event);
}

void Stopwatch::begin(const UnionCall& call, bool timed, CuStream stream) {
  running_ = false;
  if (!timed || begun_ - taken_ == kMost) return;
  Measured& one = current();
  for (CuEvent& event : one.events)
    if (event == nullptr) check_cuda(cuda().event_create(&event, 0), "cuEventCreate");
  one.call = call;
  record(one.events[0], stream);
  running_ = true;
}

void Stopwatch::looked(CuStream stream) {
  if (running_) record(current().events[1], stream);
}

void Stopwatch::end(CuStream stream) {
  if (!running_) return;
  running_ = false;
  record(current().events[2], stream);
  ++begun_;
}

std::optional<Stopwatch::Time> Stopwatch::take() {
  if (taken_ == begun_) return std::nullopt;
  const Measured& one = ring_[taken_ % kMost];
  if (cuda().event_query(one.events[2]) != CuResult::success) return std::nullopt;
  ++taken_;
  return Time{one.call, between(one.events[0], one.events[1]),
              between(one.events[1], one.events[2])};
}

}  // namespace omnihvd
