// Whether a buffer lies in a GPU's memory, as it may where MPI knows CUDA.
#pragma once

#include <cstddef>

namespace omnihvd {

// False where no CUDA driver is loaded: then nobody has such memory. Managed memory counts as
// what the driver says it is.
bool in_device_memory(const void* buffer);

// From and to any memory, where some is a device's. Throws Error.
void copy_device_memory(void* to, const void* from, size_t bytes);

}  // namespace omnihvd
