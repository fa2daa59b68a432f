// What Horovod's and Open MPI's waiting loops call instead of sched_yield(), by the GOT hook.
//
// They poll until their sum is there: two threads a rank, on cores that the sum itself needs. A
// loop that has waited for some time t sleeps for t/16 at a time, so that it learns of the end at
// most 6% later than by polling, and leaves the core to others meanwhile. Short waits poll. While
// another thread of the process makes a sum that is all that most wait for, and its end wakes them.
#pragma once

#include <cstdint>

namespace omnihvd {

// How long a thread that has waited for so long may sleep, in ns. Pure. Who waits within a sum of
// its own, as MPI does in one that it was given, polls for longer: the others leave it the cores.
uint64_t nap_ns(uint64_t waited_ns, bool for_own_sum);

// A sum that this thread makes as long as this exists.
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

// As sched_yield(). Any thread.
extern "C" int omnihvd_sched_yield();
