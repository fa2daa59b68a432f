// What a thread does now and then while it waits for a sum.
#pragma once

#include <chrono>
#include <functional>

namespace omnihvd {

// As long as this exists, this thread calls `work` about that often while it waits. For programs
// with an MPI that moves their own messages only in a call of its own, and for Python, which runs
// handlers of signals only where it is asked to. `work` must not throw.
class WhileWaiting {
 public:
  using Milliseconds = std::chrono::milliseconds;

  WhileWaiting(std::function<void()> work, Milliseconds every);  // empty: nothing
  ~WhileWaiting();
  WhileWaiting(const WhileWaiting&) = delete;

  static WhileWaiting* here();  // this thread's; null: nothing
  Milliseconds every() const { return every_; }
  void work();  // if it is time

 private:
  const std::function<void()> work_;
  const Milliseconds every_;
  std::chrono::steady_clock::time_point worked_{};
  WhileWaiting* const before_;
};

}  // namespace omnihvd
