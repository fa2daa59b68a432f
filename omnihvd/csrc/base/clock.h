// Time as pure parts take it.
#pragma once

#include <chrono>
#include <cstdint>

namespace omnihvd {

// Microseconds of a clock that never goes back.
inline uint64_t steady_us() {
  using namespace std::chrono;
  return uint64_t(duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count());
}

}  // namespace omnihvd
