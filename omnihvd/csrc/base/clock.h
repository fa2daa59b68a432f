// The clocks. Pure code takes the time as an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace omnihvd {

// Microseconds of a monotonic clock.
inline uint64_t steady_us() {
  using namespace std::chrono;
  return uint64_t(duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count());
}

// The sessions' clock: steady_clock, or simulated time on a thread that simulates.
class SessionClock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;

  static time_point now() { return simulated_ ? *simulated_ : std::chrono::steady_clock::now(); }

  // While it lives, the clock of this thread stands still at that time.
  class Stopped {
   public:
    explicit Stopped(uint64_t us)
        : time_(std::chrono::microseconds(us)), before_(std::exchange(simulated_, &time_)) {}
    Stopped(const Stopped&) = delete;
    ~Stopped() { simulated_ = before_; }

   private:
    const time_point time_;
    const time_point* const before_;
  };

 private:
  static inline thread_local const time_point* simulated_ = nullptr;
};

}  // namespace omnihvd
