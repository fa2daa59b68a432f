// Detects buffers in GPU memory, which a CUDA-aware MPI allows.
#pragma once

#include <cstddef>

namespace omnihvd {

// Returns false if no CUDA driver is loaded: then no such memory exists. For managed memory the
// driver's answer applies.
bool in_device_memory(const void* buffer);

// Copies between any two memories, if one of them is a device's. Throws Error.
void copy_device_memory(void* to, const void* from, size_t bytes);

}  // namespace omnihvd
