// Waiting for other ranks: not for ever, and not in silence.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace omnihvd {

struct Patience {  // in seconds; 0: none
  double warning_s = 0;
  double limit_s = 0;

  Patience within(double seconds) const {
    if (seconds <= 0) return *this;
    return {warning_s, limit_s > 0 ? std::min(limit_s, seconds) : seconds};
  }
};

class Waiting {
 public:
  Waiting(const Patience& patience, double warn_again_s)
      : patience_(patience), warn_again_s_(warn_again_s), next_warning_s_(patience.warning_s) {}

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  bool over() const { return patience_.limit_s > 0 && seconds() >= patience_.limit_s; }
  // True when it is time for a warning.
  bool warn() {
    if (patience_.warning_s <= 0 || seconds() < next_warning_s_) return false;
    next_warning_s_ = warn_again_s_ > 0 ? seconds() + warn_again_s_ : 1e18;
    return true;
  }
  // The ranks of a running program come within microseconds; who is late may be long.
  void pause() const {
    if (seconds() < 1e-3)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  const Patience patience_;
  const double warn_again_s_;
  double next_warning_s_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace omnihvd
