// Horovod's own thread calls this instead of nanosleep(), through the GOT hook.
//
// It sleeps from one cycle to the next (HOROVOD_CYCLE_TIME, 1 ms) so that tensors queued meanwhile
// are fused. When a training thread begins to wait, it has queued all that it wants: sleeping
// longer only costs time, so the sleep ends.
#pragma once

#include <time.h>

namespace omnihvd {

// The calling thread begins to wait for a Horovod operation.
void end_sleep_between_cycles();

}  // namespace omnihvd

// Like nanosleep(), but may return early. Any thread.
extern "C" int omnihvd_nanosleep(const timespec* time, timespec* left);
