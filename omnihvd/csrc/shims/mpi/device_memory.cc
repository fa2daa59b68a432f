#include "shims/mpi/device_memory.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>

namespace omnihvd {
namespace {

// Of CUDA's driver API; stable since CUDA 4.
using PointerGetAttribute = int (*)(void* data, int attribute, uint64_t pointer);
constexpr int kMemoryType = 2;         // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

PointerGetAttribute pointer_attribute() {
  static std::atomic<PointerGetAttribute> found{nullptr};
  if (PointerGetAttribute known = found) return known;
  // Only if the program has loaded it; it may do so later.
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!driver) return nullptr;
  found = reinterpret_cast<PointerGetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  return found;
}

}  // namespace

bool in_device_memory(const void* buffer) {
  const PointerGetAttribute get = pointer_attribute();
  unsigned type = 0;
  return get && get(&type, kMemoryType, reinterpret_cast<uint64_t>(buffer)) == 0 &&
         type == kDeviceMemory;
}

}  // namespace omnihvd
