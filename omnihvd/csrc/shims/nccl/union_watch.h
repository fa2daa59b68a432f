// Who keeps a sum waiting: notices sums that do not get on.
#pragma once

#include <chrono>
#include <cstdint>

#include "session/settings.h"

namespace omnihvd {

struct UnionProgress {
  enum class Waits {
    for_input,   // the caller's stream has not come to it
    for_kernel,  // of ours, before which nothing is left to be done
    for_others,  // ranks, or NCCL's work with them
  };
  uint64_t turn = 0, steps = 0;  // grow as the sums get on
  Waits waits = Waits::for_input;

  bool operator==(const UnionProgress& other) const {
    return turn == other.turn && steps == other.steps && waits == other.waits;
  }
};

class UnionWatch {
 public:
  explicit UnionWatch(const Settings& settings) : settings_(settings) {}

  // Of the oldest sum, now and then. Warns; throws Error if the sum is not to be waited for.
  void look(const UnionProgress& now, uint64_t elements);

 private:
  using Clock = std::chrono::steady_clock;
  const Settings& settings_;
  UnionProgress seen_;
  Clock::time_point since_ = Clock::now();
  double next_warning_s_ = 0;
};

}  // namespace omnihvd
