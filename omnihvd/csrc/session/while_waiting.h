// What a thread does now and then while it waits for a sum.
#pragma once

#include <chrono>

namespace omnihvd {

// As long as this exists, this thread calls `work` every millisecond while it waits. For
// programs whose MPI moves their own messages only while they are in a call of its.
class WhileWaiting {
 public:
  static constexpr std::chrono::milliseconds kEvery{1};

  explicit WhileWaiting(void (*work)());  // null: nothing
  ~WhileWaiting();
  WhileWaiting(const WhileWaiting&) = delete;

  // This thread's; null: nothing.
  static void (*work())();
};

}  // namespace omnihvd
