#include "nccl/cuda_driver.h"

#include <dlfcn.h>

#include "base/error.h"

namespace omnihvd {
namespace {

void* opened() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(std::string("no CUDA driver: ") + dlerror());
  return library;
}

CudaDriver load() {
  CudaDriver driver;
  if (driver.init(0) != CuResult::success) throw Error("the CUDA driver cannot be initialized");
  return driver;
}

}  // namespace

FoundFunction in_driver(const char* symbol, bool required) {
  static void* const library = opened();
  void* const found = dlsym(library, symbol);
  if (found == nullptr && required)
    throw Error("the CUDA driver has no function " + std::string(symbol) +
                ": it is older than CUDA 10.1");
  return {found};
}

const CudaDriver& cuda() {
  static const CudaDriver driver = load();
  return driver;
}

void check_cuda(CuResult result, const char* what) {
  if (result == CuResult::success) return;
  const char* name = nullptr;
  cuda().get_error_name(result, &name);
  throw Error(std::string(what) +
              " failed: " + (name ? name : "error " + std::to_string(static_cast<int>(result))));
}

CuContext primary_context(CuDevice ordinal) {
  CuDevice device = 0;
  CuContext context = nullptr;
  check_cuda(cuda().device_get(&device, ordinal), "cuDeviceGet");
  check_cuda(cuda().primary_ctx_retain(&context, device), "cuDevicePrimaryCtxRetain");
  return context;
}

std::string architecture_of(CuDevice ordinal) {
  CuDevice device = 0;
  int major = 0, minor = 0;
  check_cuda(cuda().device_get(&device, ordinal), "cuDeviceGet");
  check_cuda(cuda().device_get_attribute(&major, kCuComputeMajor, device), "cuDeviceGetAttribute");
  check_cuda(cuda().device_get_attribute(&minor, kCuComputeMinor, device), "cuDeviceGetAttribute");
  return "sm_" + std::to_string(major) + std::to_string(minor);
}

CudaScope::CudaScope(CuContext context) {
  check_cuda(cuda().ctx_get_current(&before_), "cuCtxGetCurrent");
  check_cuda(cuda().ctx_set_current(context), "cuCtxSetCurrent");
  cuda().thread_exchange_capture_mode(&capture_mode_);
}

CudaScope::~CudaScope() {
  cuda().thread_exchange_capture_mode(&capture_mode_);
  cuda().ctx_set_current(before_);
}

DeviceMemory::DeviceMemory(size_t bytes) {
  CuAddress address = 0;
  check_cuda(cuda().mem_alloc(&address, bytes), "cuMemAlloc");
  data_.reset(reinterpret_cast<void*>(address));
}

PinnedMemory::PinnedMemory(size_t bytes) {
  void* data = nullptr;
  check_cuda(cuda().mem_host_alloc(&data, bytes, kCuHostPortable | kCuHostDeviceMap),
             "cuMemHostAlloc");
  data_.reset(data);
  check_cuda(cuda().mem_host_get_device_pointer(&address_, data, 0), "cuMemHostGetDevicePointer");
}

}  // namespace omnihvd
