#include "intercept/mpi/device_memory.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace omnihvd {
namespace {

// From CUDA's driver API; stable since CUDA 4.
using PointerGetAttribute = int (*)(void* data, int attribute, uint64_t pointer);
using Memcpy = int (*)(uint64_t to, uint64_t from, size_t bytes);
constexpr int kMemoryType = 2;         // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

// Null unless the program has loaded the driver, which it may do later.
template <typename Function>
Function of_driver(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver ? reinterpret_cast<Function>(dlsym(driver, name)) : nullptr;
}

// How many libraries the process has ever loaded: takes 10 ns, and dlopen() 20 us.
uint64_t libraries_loaded() {
  uint64_t count = 0;
  const auto take = [](dl_phdr_info* info, size_t, void* to) {
    *static_cast<uint64_t*>(to) = info->dlpi_adds;
    return 1;  // no further call
  };
  dl_iterate_phdr(take, &count);
  return count;
}

uint64_t address(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

}  // namespace

bool in_device_memory(const void* buffer) {
  static std::atomic<PointerGetAttribute> found{nullptr};
  static std::atomic<uint64_t> looked_at{0};
  if (const uint64_t loaded = libraries_loaded(); loaded != looked_at) {
    found = of_driver<PointerGetAttribute>("cuPointerGetAttribute");
    looked_at = loaded;
  }
  const PointerGetAttribute get = found;
  unsigned type = 0;
  return get && get(&type, kMemoryType, address(buffer)) == 0 && type == kDeviceMemory;
}

void copy_device_memory(void* to, const void* from, size_t bytes) {
  static const auto copy = of_driver<Memcpy>("cuMemcpy");
  const int result = copy ? copy(address(to), address(from), bytes) : -1;
  if (result != 0)
    throw Error("a buffer in a GPU's memory cannot be copied: cuMemcpy failed with " +
                std::to_string(result));
}

}  // namespace omnihvd
