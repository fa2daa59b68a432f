// The waiting loops of Horovod and Open MPI call this instead of sched_yield(), through the GOT
// hook.
//
// They poll until their sum is done: two threads a rank, on cores that the sum itself needs. Here a
// loop that has waited for time t, some milliseconds or more, backs off: it sleeps for t/16 at a
// time. So it learns of the end at most 6% later than by polling, and leaves the core to others
// meanwhile. Shorter waits poll: naps of some microseconds cost more than they leave to others, and
// MPI's small sums are many short waits. Beside a thread that computes, loops back off early. While
// another thread of the process makes a sum, most loops wait for that sum alone, and its end wakes
// them.
#pragma once

#include <cstdint>

namespace omnihvd {

// Marks a sum that this thread makes, for as long as this object lives.
class SumUnderWay {
 public:
  SumUnderWay();
  ~SumUnderWay();
  SumUnderWay(const SumUnderWay&) = delete;
  SumUnderWay& operator=(const SumUnderWay&) = delete;
};

struct Naps {
  uint64_t count = 0;
  double seconds = 0;
};
Naps naps();  // of all threads of this process so far

}  // namespace omnihvd

// Like sched_yield(). Any thread.
extern "C" int omnihvd_sched_yield();
