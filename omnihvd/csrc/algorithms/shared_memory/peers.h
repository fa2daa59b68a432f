// A rank's knowledge of the ranks with which it shares memory: their names, why sums have failed,
// and, while it waits for them, who is late and who has gone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/shared_memory/segment.h"
#include "algorithms/waiting.h"
#include "engine/settings.h"

namespace omnihvd {

// Why no sum can be made any more. In the shared memory, all zero at first.
struct SharedFailure {
  std::atomic<uint32_t> failed;  // 1: a rank is writing why; 2: it is written
  char why[1020];
};

// One thread at a time.
class Peers {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Progress { come, late, left };

  // segment, failure: outlive this object. numbers: how messages number the ranks; empty: from 0.
  Peers(const Segment& segment, SharedFailure& failure, int rank, int ranks,
        const Settings& settings, std::string host, std::vector<int> numbers)
      : segment_(segment),
        failure_(failure),
        rank_(rank),
        ranks_(ranks),
        timer_(settings),
        host_(std::move(host)),
        numbers_(std::move(numbers)) {}

  uint32_t number_of(int rank) const {
    return uint32_t(numbers_.empty() ? rank : numbers_[size_t(rank)]);
  }
  std::string name_of(int rank) const;
  void set_timeout(double seconds) { timer_.set_timeout(seconds); }

  // Fails the sums of all ranks. fail() throws Error, too.
  void abort(const std::string& why) noexcept;
  [[noreturn]] void fail(const std::string& why);
  // fail(), since two ranks make different sums.
  [[noreturn]] void fail_as_different(int rank, const std::string& theirs, const std::string& mine);
  void throw_if_failed() const;

  void begin() { timer_.begin_sum(); }  // of a sum
  // Polls until `open`, for so long at most. Returns whether it is.
  template <typename Open>
  static bool spin(Open open, std::chrono::microseconds at_most);
  // Returns when `open`. Throws Error if a rank has failed, left or ended, or the sum takes
  // longer than OMNIHVD_TIMEOUT. sleep: returns when woken, or after so long. sum: what the ranks
  // sum.
  void wait(const std::function<bool()>& open,
            const std::function<void(std::chrono::milliseconds)>& sleep,
            const std::function<Progress(int rank)>& progress, const std::string& sum);

 private:
  void look(const std::function<Progress(int rank)>& progress, const std::string& sum);

  const Segment& segment_;
  SharedFailure& failure_;
  const int rank_, ranks_;
  SumTimer timer_;
  const std::string host_;
  const std::vector<int> numbers_;
};

template <typename Open>
bool Peers::spin(Open open, std::chrono::microseconds at_most) {
  if (open()) return true;
  if (at_most.count() == 0) return false;
  const auto end = Clock::now() + at_most;
  do {
    for (int times = 0; times < 32; ++times) {
      if (open()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("isb");
#endif
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace omnihvd
