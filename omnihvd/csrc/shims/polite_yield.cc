#include "shims/polite_yield.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>

namespace omnihvd {
namespace {

constexpr uint64_t kPollFor = 100'000;  // ns; a sleep and a wake-up cost some 10 us
constexpr uint64_t kLongest = 500'000;  // ns
constexpr uint64_t kWorking = 10'000;   // ns; who yields again after more than this did not wait

std::atomic<uint64_t> nap_count{0}, nap_time{0};

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

// The kernel may add the thread's timer slack to a sleep: 50 us by default, too much here.
void sleep_precisely(uint64_t ns) {
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1000);
  const timespec time{0, long(ns)};
  nanosleep(&time, nullptr);
  if (slack > 0) prctl(PR_SET_TIMERSLACK, slack);
}

}  // namespace

uint64_t nap_ns(uint64_t waited_ns) {
  return waited_ns < kPollFor ? 0 : std::min(waited_ns / 16, kLongest);
}

Naps naps() { return {nap_count, double(nap_time) / 1e9}; }

}  // namespace omnihvd

extern "C" __attribute__((visibility("default"))) int omnihvd_sched_yield() {
  using namespace omnihvd;
  thread_local uint64_t waiting_since = 0, last_yield = 0;
  const uint64_t before = now_ns();
  if (before - last_yield > kWorking) waiting_since = before;
  const uint64_t nap = nap_ns(before - waiting_since);
  if (nap == 0) {
    sched_yield();
  } else {
    sleep_precisely(nap);
  }
  last_yield = now_ns();
  if (nap > 0) {
    nap_count.fetch_add(1, std::memory_order_relaxed);
    nap_time.fetch_add(last_yield - before, std::memory_order_relaxed);
  }
  return 0;
}
