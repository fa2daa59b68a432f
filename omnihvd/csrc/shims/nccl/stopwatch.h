// How long sums take on the device, by events around them, which are read once they are over.
// One thread at a time calls, in a CudaScope.
#pragma once

#include <array>

#include "shims/nccl/cuda_driver.h"
#include "shims/nccl/union_plans.h"

namespace omnihvd {

class Stopwatch {
 public:
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch();  // what is under way does not mind

  // Around a sum, but for those that begin while kMost are under way. Throw Error.
  void begin(const UnionCall& call, CuStream stream);
  void end(CuStream stream);

  // One that is over.
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
