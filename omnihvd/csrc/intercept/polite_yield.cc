#include "intercept/polite_yield.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace omnihvd {
namespace {

constexpr uint64_t kPollFor = 100'000;           // ns; then a sum of another thread is waited for
constexpr uint64_t kNapAfter = 4'000'000;        // ns; a sleep and a wake-up cost some 10 us
constexpr uint64_t kSlice = 2'000'000;           // ns; a yield that takes longer met who works
constexpr uint64_t kInARow = 50'000'000;         // ns; in which three such yields met who computes
constexpr uint64_t kRemembered = 1'000'000'000;  // ns; that they did
constexpr uint64_t kLongest = 500'000;           // ns
constexpr uint64_t kLongestOfAll = 5'000'000;    // ns
constexpr uint64_t kWorking = 10'000;  // ns; a thread that yields again after longer did not wait

std::atomic<uint64_t> nap_count{0}, nap_time{0};

thread_local int sums_of_this_thread = 0;

struct Sums {
  std::mutex mutex;
  std::condition_variable one_ended;
  int under_way = 0;
  uint64_t ended = 0;
};

Sums& sums() {
  static Sums* const all = new Sums;  // threads may poll until the process has ended
  return *all;
}

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

// Linux lets a thread that has yielded wait for others' slices even once it has work to do. So who
// shares its core with one that computes naps soon: it runs at once when it wakes.
uint64_t nap_ns(uint64_t waited_ns, bool beside_work) {
  return waited_ns < (beside_work ? kPollFor : kNapAfter) ? 0 : std::min(waited_ns / 16, kLongest);
}

enum class Woken { not_slept, by_time, by_end };

// Sleeps while another thread makes a sum, but not for ever: this thread may wait for another sum.
Woken sleep_until_a_sum_ends(uint64_t waited_ns) {
  if (sums_of_this_thread > 0) return Woken::not_slept;
  Sums& all = sums();
  std::unique_lock<std::mutex> lock(all.mutex);
  if (all.under_way == 0) return Woken::not_slept;
  const uint64_t before = all.ended;
  const uint64_t at_most_ns = std::min(waited_ns / 2, kLongestOfAll);
  const bool ended = all.one_ended.wait_for(lock, std::chrono::nanoseconds(at_most_ns),
                                            [&] { return all.ended != before; });
  return ended ? Woken::by_end : Woken::by_time;
}

// How many sleeps between Horovod's cycles one wait cuts short. In the first cycle after a wait
// began, not every rank needs to have begun to wait; the cycle it fell into may have missed what
// was queued.
constexpr uint64_t kSleeps = 3;

struct Waits {
  std::mutex mutex;
  std::condition_variable one_began;
  uint64_t sleeps_to_end = 0;
  // Horovod's own thread, which waits for other ranks. Before it, hvd.init() slept in another
  // thread.
  std::thread::id last_to_sleep;
};

Waits& waits() {
  static Waits* const all = new Waits;  // threads may sleep until the process has ended
  return *all;
}

// The calling thread begins to wait for a Horovod operation.
void end_sleep_between_cycles() {
  Waits& all = waits();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.last_to_sleep == std::this_thread::get_id()) return;
    all.sleeps_to_end = kSleeps;
  }
  all.one_began.notify_all();
}

}  // namespace

SumUnderWay::SumUnderWay() {
  ++sums_of_this_thread;
  const std::lock_guard<std::mutex> lock(sums().mutex);
  ++sums().under_way;
}

SumUnderWay::~SumUnderWay() {
  --sums_of_this_thread;
  {
    const std::lock_guard<std::mutex> lock(sums().mutex);
    --sums().under_way;
    ++sums().ended;
  }
  sums().one_ended.notify_all();
}

Naps naps() { return {nap_count, double(nap_time) / 1e9}; }

}  // namespace omnihvd

extern "C" __attribute__((visibility("default"))) int omnihvd_sched_yield() {
  using namespace omnihvd;
  thread_local uint64_t waiting_since = 0, last_yield = 0, beside_work_until = 0;
  thread_local uint64_t last_long = 0, long_before = 0;
  const uint64_t before = now_ns();
  if (before - last_yield > kWorking) {
    waiting_since = before;
    end_sleep_between_cycles();
  }
  const uint64_t waited = before - waiting_since;
  const uint64_t nap = nap_ns(waited, before < beside_work_until);
  const Woken woken = waited < kPollFor ? Woken::not_slept : sleep_until_a_sum_ends(waited);
  const bool slept = woken != Woken::not_slept || nap > 0;
  if (!slept)
    sched_yield();
  else if (woken == Woken::not_slept)
    sleep_precisely(nap);
  last_yield = now_ns();
  if (!slept && last_yield - before > kSlice) {
    if (last_yield - long_before < kInARow) beside_work_until = last_yield + kRemembered;
    long_before = std::exchange(last_long, last_yield);
  }
  if (woken == Woken::by_end) waiting_since = last_yield;  // about to see the sum's result
  if (slept) {
    nap_count.fetch_add(1, std::memory_order_relaxed);
    nap_time.fetch_add(last_yield - before, std::memory_order_relaxed);
  }
  return 0;
}

// Like nanosleep(), but may return early. Any thread. Horovod's own thread calls this instead,
// through the GOT hook.
//
// It sleeps from one cycle to the next (HOROVOD_CYCLE_TIME, 1 ms) so that tensors queued meanwhile
// are fused. When a training thread begins to wait, it has queued all that it wants: sleeping
// longer only costs time, so the sleep ends.
extern "C" __attribute__((visibility("default"))) int omnihvd_nanosleep(const timespec* time,
                                                                        timespec*) {
  using namespace omnihvd;
  const auto limit = std::chrono::seconds(time->tv_sec) + std::chrono::nanoseconds(time->tv_nsec);
  Waits& all = waits();
  std::unique_lock<std::mutex> lock(all.mutex);
  all.last_to_sleep = std::this_thread::get_id();
  if (all.one_began.wait_for(lock, limit, [&] { return all.sleeps_to_end > 0; }))
    --all.sleeps_to_end;
  return 0;
}
