// Launches of the emulated kernels (tests/kernels/emulation).
//
// CUDA_DOUBLE_KERNELS=alone: a kernel, NCCL's too, has the device for itself until it ends, as
// where two do not fit. =blocking: its launch returns when it has ended, as under tools that look
// at one at a time. =turns: processes share a GPU; while a kernel of one runs, none of another
// does, unless it gives way, which a GPU may make it do at any time, and here only one does that
// waits. NCCL's, which wait for each other in any case, take none.
#pragma once

#include <mutex>
#include <string>

#include "stream.h"

namespace doubles {

// Queues it. Dies if it was given what it does not take, or, as it runs, if it fails.
void launch(const std::string& kernel, void* entry, unsigned grid, unsigned threads, Stream& stream,
            void** arguments);

bool kernels_are(const char* how);

// Held while a kernel has the device for itself.
std::mutex& device_mutex();

void end_in_rest();  // the process, when that kernel begins

}  // namespace doubles
