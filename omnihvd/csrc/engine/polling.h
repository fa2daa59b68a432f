// Decides whether a progress thread that finds no work polls on or sleeps.
#pragma once

#include "base/clock.h"

namespace omnihvd {

// Several ranks may share a core, so a thread polls for a moment only. A slow link brings nothing
// within that moment: polling must have found work often enough, or be tried again.
class Polling {
 public:
  using Clock = SessionClock;

  explicit Polling(Clock::duration limit) : limit_(limit) {}

  void on_work(Clock::time_point now) {
    if (polled_) learn(true);
    last_work_ = now;
  }

  bool may_sleep(Clock::time_point now) {
    if (now - last_work_ >= limit_) {
      if (polled_) learn(false);
      return true;
    }
    polled_ = polled_ || found_ >= kWorth || ++pauses_ % kTryAgain == 0;
    return !polled_;
  }

 private:
  static constexpr double kWorth = 0.25;
  static constexpr unsigned kTryAgain = 32;

  void learn(bool found) {
    found_ += (found - found_) / 16;
    polled_ = false;
  }

  const Clock::duration limit_;
  Clock::time_point last_work_;
  bool polled_ = false;  // since the last work
  double found_ = 1;     // the share of the latest polls that found work
  unsigned pauses_ = 0;  // in which the thread did not poll
};

}  // namespace omnihvd
