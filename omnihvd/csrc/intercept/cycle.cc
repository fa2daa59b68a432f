#include "intercept/cycle.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace omnihvd {
namespace {

// How many sleeps one wait cuts short. In the first cycle after a wait began, not every rank needs
// to have begun to wait; the cycle it fell into may have missed what was queued.
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

}  // namespace

void end_sleep_between_cycles() {
  Waits& all = waits();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.last_to_sleep == std::this_thread::get_id()) return;
    all.sleeps_to_end = kSleeps;
  }
  all.one_began.notify_all();
}

}  // namespace omnihvd

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
