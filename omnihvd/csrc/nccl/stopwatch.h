// Measures how long sums take on the device, with events around them that are read once the sums
// are over. One thread at a time calls, in a CudaScope.
#pragma once

#include <array>
#include <optional>

#include "nccl/cuda_driver.h"
#include "nccl/union_plans.h"

namespace omnihvd {

class Stopwatch {
 public:
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch();  // harmless to measurements under way

  // Called before a sum, after its look, and after the sum. Ignores sums that begin while kMost are
  // under way, and those with `timed` false. All throw Error.
  void begin(const UnionCall& call, bool timed, CuStream stream);
  void looked(CuStream stream);
  void end(CuStream stream);

  // A finished measurement, in nanoseconds.
  struct Time {
    UnionCall call;
    uint64_t look, sum;
  };
  std::optional<Time> take();

 private:
  static constexpr size_t kMost = 8;
  struct Measured {
    UnionCall call;
    CuEvent events[3] = {};
  };
  Measured& current() { return ring_[begun_ % kMost]; }

  std::array<Measured, kMost> ring_;
  uint64_t begun_ = 0, taken_ = 0;
  bool running_ = false;
};

}  // namespace omnihvd
