// What Horovod's own thread calls instead of nanosleep(), by the GOT hook.
//
// It sleeps from one cycle to the next (HOROVOD_CYCLE_TIME, 1 ms), so that what is queued meanwhile
// is fused. When a thread of the training begins to wait it has queued what it wants: waiting for
// more only costs time, and the sleep ends.
#pragma once

#include <time.h>

namespace omnihvd {

// The calling thread begins to wait for something of Horovod's.
void end_sleep_between_cycles();

}  // namespace omnihvd

// As nanosleep(), but that it may return early. Any thread.
extern "C" int omnihvd_nanosleep(const timespec* time, timespec* left);
