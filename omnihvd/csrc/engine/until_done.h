// Runs a collective and waits for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/session.h"
#include "engine/while_waiting.h"

namespace omnihvd {

// start(Group::Done) begins a collective. Once it has ended, returns how many blocks were non-zero
// on any rank; throws Error if it has failed.
template <typename Start>
uint64_t until_done(Start start) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  uint64_t united_blocks = 0;
  std::optional<std::string> failure;
  start([&](const std::string* why, uint64_t united) {
    const std::lock_guard lock(mutex);
    united_blocks = united;
    if (why) failure = *why;
    done = true;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  const auto is_done = [&] { return done; };
  if (WhileWaiting* const waiting = WhileWaiting::here())
    while (!changed.wait_for(lock, waiting->every(), is_done)) {
      lock.unlock();
      waiting->work();
      lock.lock();
    }
  changed.wait(lock, is_done);
  if (failure) throw Error(*failure);
  return united_blocks;
}

}  // namespace omnihvd
