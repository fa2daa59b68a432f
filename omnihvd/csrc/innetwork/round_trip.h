// Estimates round trips, for time-outs (RFC 6298). Pure; any unit of time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace omnihvd {

class RoundTrip {
 public:
  void measure(uint64_t trip) {
    trip = std::max<uint64_t>(1, trip);
    if (smoothed_ == 0) {
      smoothed_ = trip;
      deviation_ = trip / 2;
      return;
    }
    const uint64_t off = std::max(smoothed_, trip) - std::min(smoothed_, trip);
    deviation_ = (3 * deviation_ + off) / 4;
    smoothed_ = std::max<uint64_t>(1, (7 * smoothed_ + trip) / 8);
  }
  uint64_t smoothed() const { return smoothed_; }  // 0: not measured yet
  // The time-out after so many others in a row, which doubles each time. least_margin: at least so
  // much beyond the round trip. first: the time-out before the first measurement.
  uint64_t time_out(uint32_t tries, uint64_t least_margin, uint64_t first, uint64_t least,
                    uint64_t most) const {
    const uint64_t once = smoothed_ == 0
                              ? first
                              : std::max(least, smoothed_ + std::max(least_margin, 4 * deviation_));
    return std::min(once << std::min(tries, 16u), most);
  }

 private:
  uint64_t smoothed_ = 0, deviation_ = 0;
};

}  // namespace omnihvd
