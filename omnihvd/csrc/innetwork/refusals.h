// Reports of hosts that nobody has a socket any more (ICMP). One report proves nothing: a host may
// restart a process at that port. Pure: times are arguments, in microseconds.
#pragma once

#include <cstdint>

namespace omnihvd {

class Refusals {
 public:
  static constexpr uint64_t kFor = 100'000;  // the least time from the first report to the last

  void add(uint64_t now) {
    if (count_++ == 0) since_ = now;
  }
  void clear() { count_ = 0; }
  bool any() const { return count_ > 0; }
  bool few() const { return count_ < kEnough; }
  // Have enough come, for long enough, to believe them?
  bool enough(uint64_t now) const { return !few() && now >= since_ + kFor; }

 private:
  static constexpr uint32_t kEnough = 3;  // in a row
  uint32_t count_ = 0;
  uint64_t since_ = 0;
};

}  // namespace omnihvd
