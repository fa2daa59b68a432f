// Work that a thread does now and then while it waits for a sum.
#pragma once

#include <chrono>
#include <functional>

namespace omnihvd {

// While this exists, this thread calls `work` about that often as it waits, and the work of the one
// that was there before. Needed for programs with an MPI that moves messages only inside its own
// calls, for Python, which runs signal handlers only when asked to, and to look for ranks in other
// sums. `work` must not throw.
class WhileWaiting {
 public:
  using Milliseconds = std::chrono::milliseconds;

  WhileWaiting(std::function<void()> work, Milliseconds every);  // empty: nothing
  ~WhileWaiting();
  WhileWaiting(const WhileWaiting&) = delete;

  static WhileWaiting* here();  // this thread's; null: nothing
  Milliseconds every() const;
  void work();  // if it is time

 private:
  const std::function<void()> work_;
  const Milliseconds every_;
  std::chrono::steady_clock::time_point worked_{};
  WhileWaiting* const before_;
};

}  // namespace omnihvd
