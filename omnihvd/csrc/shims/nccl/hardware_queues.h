// The hardware queues into which streams are multiplexed: a stream that waits holds up what other
// streams have in its queue.
#pragma once

#include "shims/nccl/cuda_driver.h"

namespace omnihvd {

// How many there are, as far as somebody has said so; 0: nobody has, CUDA makes 8.
int hardware_queues();

// Warns, once in a process, that there are fewer than CUDA makes.
void warn_of_few_queues();

// Of each sum: a stream that has to do with it, until it ends. Warns, once in a process, when those
// of one priority are more than the queues. Any thread.
void note_stream(CuStream stream, int priority);
void forget_stream(CuStream stream, int priority);
bool streams_share_queues();  // it has warned

}  // namespace omnihvd
