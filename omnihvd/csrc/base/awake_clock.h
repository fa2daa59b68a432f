// Time in which this process was awake, for who waits for others and counts their silence: while it
// was stopped (SIGSTOP, a frozen container, a suspended job) it could not hear them.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace omnihvd {

class AwakeClock {
 public:
  static constexpr uint64_t kLongestStep = 2'000'000;  // microseconds; a longer one is a stop
  static constexpr uint64_t kOfAStop = 100'000;        // that count all the same

  // Microseconds. A process that is awake looks at the clock once a second.
  uint64_t now() { return at(steady_us()); }
  uint64_t at(uint64_t steady) {  // the same; pure
    const uint64_t step = steady - looked_;
    const bool stopped = step > kLongestStep;
    stops_ += stopped;
    awake_ += stopped ? kOfAStop : step;
    looked_ = steady;
    return awake_;
  }
  uint64_t stops() const { return stops_; }  // so far

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
