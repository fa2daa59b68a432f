// Time in which this process was awake, for who waits for others and counts their silence: while it
// was stopped (SIGSTOP, a frozen container, a suspended job) it could not hear them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace omnihvd {

class AwakeClock {
 public:
  // Microseconds. Who is awake looks at the clock every second; what passes beyond that between two
  // looks is no time awake.
  uint64_t now() { return at(steady_us()); }
  uint64_t at(uint64_t steady) {  // the same; pure
    awake_ += std::min<uint64_t>(steady - looked_, 1'000'000);
    looked_ = steady;
    return awake_;
  }

 private:
  uint64_t looked_ = 0, awake_ = 0;
};

}  // namespace omnihvd
