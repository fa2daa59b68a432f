// Measures how long sums take on the device, with events around them that are read once the sums
// are over. One thread at a time calls, in a CudaScope.
#pragma once

#include <array>

#include "nccl/cuda_driver.h"
#include "nccl/union_plans.h"

namespace omnihvd {

class Stopwatch {
 public:
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch();  // harmless to measurements under way

  // Called around a sum. Ignores sums that begin while kMost are under way. Both throw Error.
  void begin(const UnionCall& call, CuStream stream);
  void end(CuStream stream);

  // A finished measurement.
  struct Time {
    UnionCall call;
    double seconds;
  };
  std::optional<Time> take();

 private:
  static constexpr size_t kMost = 8;
  struct Measured {
    UnionCall call;
    CuEvent begin = nullptr, end = nullptr;
  };
  std::array<Measured, kMost> ring_;
  uint64_t begun_ = 0, taken_ = 0;
  bool running_ = false;
};

}  // namespace omnihvd
