// A reusable barrier in shared memory, in two parts: arriving, and waiting until all have arrived.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace omnihvd {

// On a word in shared memory.
inline void futex_wait(std::atomic<uint32_t>* word, uint32_t seen,
                       std::chrono::milliseconds at_most) {
  const timespec limit{time_t(at_most.count() / 1000), long(at_most.count() % 1000) * 1000000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}
inline void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// All zero at first. A rank arrives once for each time that the gate opens, and may arrive for the
// next time only after it has opened for the last.
class Gate {
 public:
  void arrive(uint32_t ranks) {
    if ((arrived_.fetch_add(1) + 1) % ranks != 0) return;
    opened_.fetch_add(1);
    if (waiting_.load() > 0) futex_wake(&opened_);
  }
  // Has it opened `times` times, counted modulo 2^32?
  bool open(uint32_t times) const { return int32_t(opened_.load() - times) >= 0; }
  // Returns when open, or after so long.
  void wait(uint32_t times, std::chrono::milliseconds at_most) {
    waiting_.fetch_add(1);
    const uint32_t seen = opened_.load();
    if (int32_t(seen - times) < 0) futex_wait(&opened_, seen, at_most);
    waiting_.fetch_sub(1);
  }

 private:
  std::atomic<uint64_t> arrived_;
  std::atomic<uint32_t> opened_;
  std::atomic<uint32_t> waiting_;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace omnihvd
