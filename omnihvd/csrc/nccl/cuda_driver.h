// The functions of the CUDA driver that the shim uses, found at run time: neither its build nor its
// loading needs CUDA or a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
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

struct CudaDriver {
  CuResult (*init)(unsigned flags);
  CuResult (*device_get)(CuDevice*, int ordinal);
  CuResult (*device_get_attribute)(int* value, int attribute, CuDevice);
  CuResult (*primary_ctx_retain)(CuContext*, CuDevice);
  CuResult (*ctx_get_current)(CuContext*);
  CuResult (*ctx_set_current)(CuContext);
  CuResult (*mem_alloc)(CuAddress*, size_t);
  CuResult (*mem_free)(CuAddress);
  CuResult (*mem_host_alloc)(void**, size_t, unsigned flags);
  CuResult (*mem_free_host)(void*);
  CuResult (*mem_host_get_device_pointer)(CuAddress*, void*, unsigned flags);
  CuResult (*memcpy_dtoh_async)(void*, CuAddress, size_t, CuStream);
  CuResult (*memcpy_htod_async)(CuAddress, const void*, size_t, CuStream);
  CuResult (*memset_d8_async)(CuAddress, unsigned char, size_t, CuStream);
  CuResult (*module_load_data)(CuModule*, const void* image);
  CuResult (*module_get_function)(CuFunction*, CuModule, const char*);
  CuResult (*func_load)(CuFunction);  // null before CUDA 12.4
  CuResult (*launch_kernel)(CuFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CuStream, void** arguments, void** extra);
  CuResult (*ctx_get_stream_priority_range)(int* least, int* greatest);
  CuResult (*stream_create_with_priority)(CuStream*, unsigned flags, int priority);
  CuResult (*stream_destroy)(CuStream);
  CuResult (*stream_query)(CuStream);
  CuResult (*stream_is_capturing)(CuStream, int* status);
  CuResult (*stream_wait_event)(CuStream, CuEvent, unsigned flags);
  CuResult (*event_create)(CuEvent*, unsigned flags);
  CuResult (*event_destroy)(CuEvent);
  CuResult (*event_record)(CuEvent, CuStream);
  CuResult (*event_query)(CuEvent);
  CuResult (*event_elapsed_time)(float* ms, CuEvent begin, CuEvent end);
  CuResult (*thread_exchange_capture_mode)(int* mode);
  CuResult (*get_error_name)(CuResult, const char**);
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
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();
  CuAddress address() const { return address_; }

 private:
  CuAddress address_ = 0;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);  // not cleared; throws Error
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  CuAddress address() const { return address_; }  // for the device

 private:
  void* data_ = nullptr;
  CuAddress address_ = 0;
};

}  // namespace omnihvd
