// The functions of the CUDA driver that the shim uses, found at run time: neither its build nor its
// loading needs CUDA or a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUevent_st;
struct CUstream_st;

namespace omnihvd {

using CuContext = CUctx_st*;
using CuModule = CUmod_st*;
using CuFunction = CUfunc_st*;
using CuEvent = CUevent_st*;
using CuStream = CUstream_st*;
using CuDevice = int;
using CuAddress = uint64_t;

enum class CuResult : int { success = 0, not_ready = 600, stream_capture_implicit = 906 };

// As in cuda.h.
constexpr int kCuComputeMajor = 75, kCuComputeMinor = 76;  // device attributes
constexpr unsigned kCuStreamNonBlocking = 1, kCuEventDisableTiming = 2;
constexpr unsigned kCuHostPortable = 1, kCuHostDeviceMap = 2;

// A function that was found by its symbol: a pointer to a function of any type.
struct FoundFunction {
  void* address;
  template <typename Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(address);
  }
};

// A function of the driver; null if the driver has none. Throws Error if it is required.
FoundFunction in_driver(const char* symbol, bool required = true);

struct CudaDriver {
  CuResult (*init)(unsigned flags) = in_driver("cuInit");
  CuResult (*device_get)(CuDevice*, int ordinal) = in_driver("cuDeviceGet");
  CuResult (*device_get_attribute)(int* value, int attribute,
                                   CuDevice) = in_driver("cuDeviceGetAttribute");
  CuResult (*primary_ctx_retain)(CuContext*, CuDevice) = in_driver("cuDevicePrimaryCtxRetain");
  CuResult (*ctx_get_current)(CuContext*) = in_driver("cuCtxGetCurrent");
  CuResult (*ctx_set_current)(CuContext) = in_driver("cuCtxSetCurrent");
  CuResult (*mem_alloc)(CuAddress*, size_t) = in_driver("cuMemAlloc_v2");
  CuResult (*mem_free)(CuAddress) = in_driver("cuMemFree_v2");
  CuResult (*mem_host_alloc)(void**, size_t, unsigned flags) = in_driver("cuMemHostAlloc");
  CuResult (*mem_free_host)(void*) = in_driver("cuMemFreeHost");
  CuResult (*mem_host_get_device_pointer)(CuAddress*, void*, unsigned flags) =
      in_driver("cuMemHostGetDevicePointer_v2");
  CuResult (*memcpy_dtoh_async)(void*, CuAddress, size_t,
                                CuStream) = in_driver("cuMemcpyDtoHAsync_v2");
  CuResult (*memcpy_htod_async)(CuAddress, const void*, size_t,
                                CuStream) = in_driver("cuMemcpyHtoDAsync_v2");
  CuResult (*memset_d8_async)(CuAddress, unsigned char, size_t,
                              CuStream) = in_driver("cuMemsetD8Async");
  CuResult (*module_load_data)(CuModule*, const void* image) = in_driver("cuModuleLoadData");
  CuResult (*module_get_function)(CuFunction*, CuModule,
                                  const char*) = in_driver("cuModuleGetFunction");
  CuResult (*func_load)(CuFunction) = in_driver("cuFuncLoad", false);  // null before CUDA 12.4
  CuResult (*launch_kernel)(CuFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CuStream, void** arguments,
                            void** extra) = in_driver("cuLaunchKernel");
  CuResult (*ctx_get_stream_priority_range)(int* least, int* greatest) =
      in_driver("cuCtxGetStreamPriorityRange");
  CuResult (*stream_create_with_priority)(CuStream*, unsigned flags,
                                          int priority) = in_driver("cuStreamCreateWithPriority");
  CuResult (*stream_destroy)(CuStream) = in_driver("cuStreamDestroy_v2");
  CuResult (*stream_query)(CuStream) = in_driver("cuStreamQuery");
  CuResult (*stream_is_capturing)(CuStream, int* status) = in_driver("cuStreamIsCapturing");
  CuResult (*stream_wait_event)(CuStream, CuEvent, unsigned flags) = in_driver("cuStreamWaitEvent");
  CuResult (*event_create)(CuEvent*, unsigned flags) = in_driver("cuEventCreate");
  CuResult (*event_destroy)(CuEvent) = in_driver("cuEventDestroy_v2");
  CuResult (*event_record)(CuEvent, CuStream) = in_driver("cuEventRecord");
  CuResult (*event_query)(CuEvent) = in_driver("cuEventQuery");
  CuResult (*event_elapsed_time)(float* ms, CuEvent begin,
                                 CuEvent end) = in_driver("cuEventElapsedTime");
  CuResult (*thread_exchange_capture_mode)(int* mode) =
      in_driver("cuThreadExchangeStreamCaptureMode");
  CuResult (*get_error_name)(CuResult, const char**) = in_driver("cuGetErrorName");
};

// Throws Error if there is no driver.
const CudaDriver& cuda();

// Throws Error naming `what`, unless the result is success.
void check_cuda(CuResult result, const char* what);

// The primary context of a device, which NCCL and the CUDA runtime use. Throws Error.
CuContext primary_context(CuDevice device);

// "sm_90". Throws Error.
std::string architecture_of(CuDevice device);

// Makes a context current on this thread, and allows calls that would otherwise disturb another
// thread's capture.
class CudaScope {
 public:
  explicit CudaScope(CuContext context);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;

 private:
  CuContext before_ = nullptr;
  int capture_mode_ = 2;  // relaxed
};

// Memory and objects of the device. Free them in a CudaScope, or give them up: freeing waits for
// the device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);  // throws Error
  CuAddress address() const { return reinterpret_cast<CuAddress>(data_.get()); }

 private:
  struct Free {
    void operator()(void* data) const { cuda().mem_free(reinterpret_cast<CuAddress>(data)); }
  };
  std::unique_ptr<void, Free> data_;  // not for the host
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);  // not cleared; throws Error
  uint8_t* data() const { return static_cast<uint8_t*>(data_.get()); }
  CuAddress address() const { return address_; }  // for the device

 private:
  struct Free {
    void operator()(void* data) const { cuda().mem_free_host(data); }
  };
  std::unique_ptr<void, Free> data_;
  CuAddress address_ = 0;
};

}  // namespace omnihvd
