// Counts only the time in which this process was awake. A process measures the silence of others
// with it: while it was stopped (SIGSTOP, a frozen container, a suspended job) it could not hear
// them.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/time_limits.h"

namespace omnihvd {

class AwakeClock {
 public:
  static constexpr uint64_t kLongestStep = kStop.microseconds();  // a longer one is a stop
  static constexpr uint64_t kOfAStop = 100'000;  // the part of a stop that still counts

  // Microseconds. A process that is awake reads the clock at least once a second.
  uint64_t now() { return at(steady_us()); }
  uint64_t at(uint64_t steady) {  // the same; pure
    const uint64_t step = steady - looked_;
    const bool stopped = step > kLongestStep;
    stops_ += stopped;
    awake_ += stopped ? kOfAStop : step;
    looked_ = steady;
    return awake_;
  }
  uint64_t stops() const { return stops_; }  // number of stops so far

 private:
  uint64_t looked_ = 0, awake_ = 0, stops_ = 0;
};

// How long a process waits for another one.
class AwakeTimer {
 public:
  double seconds() { return double(clock_.now() - begun_) * 1e-6; }

 private:
  AwakeClock clock_;
  const uint64_t begun_ = clock_.now();
};

}  // namespace omnihvd
