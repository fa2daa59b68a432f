// Does the shim's table of driver functions, which is written by hand, agree with cuda.h?
#include <cuda.h>

#include <type_traits>

#include "nccl/cuda_driver.h"

using Driver = omnihvd::CudaDriver;

// As many parameters, each as large, and a pointer where the other is one.
template <typename Ours, typename Theirs>
struct Alike;
template <typename R, typename... Ours, typename S, typename... Theirs>
struct Alike<R (*)(Ours...), S (*)(Theirs...)> {
  static_assert(sizeof...(Ours) == sizeof...(Theirs), "another number of parameters");
  template <typename A, typename B>
  static constexpr bool pair =
      (sizeof(A) == sizeof(B)) && (std::is_pointer<A>::value == std::is_pointer<B>::value);
  static constexpr bool value = (pair<Ours, Theirs> && ...);
};

// The name, too: cuda.h gives many functions a name with _v2 by a macro.
#define EXPAND(name) #name
#define NAME(name) EXPAND(name)
constexpr bool equal(const char* a, const char* b) {
  return *a == *b && (*a == 0 || equal(a + 1, b + 1));
}
#define AGREES(member, function, symbol)                                                           \
  static_assert(Alike<decltype(Driver::member), decltype(&function)>::value, "parameters differ"); \
  static_assert(equal(NAME(function), symbol), "another symbol");

AGREES(init, cuInit, "cuInit")
AGREES(device_get, cuDeviceGet, "cuDeviceGet")
AGREES(device_get_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute")
AGREES(primary_ctx_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")
AGREES(ctx_get_current, cuCtxGetCurrent, "cuCtxGetCurrent")
AGREES(ctx_set_current, cuCtxSetCurrent, "cuCtxSetCurrent")
AGREES(mem_alloc, cuMemAlloc, "cuMemAlloc_v2")
AGREES(mem_free, cuMemFree, "cuMemFree_v2")
AGREES(mem_host_alloc, cuMemHostAlloc, "cuMemHostAlloc")
AGREES(mem_free_host, cuMemFreeHost, "cuMemFreeHost")
AGREES(mem_host_get_device_pointer, cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2")
AGREES(memcpy_dtoh_async, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")
AGREES(memcpy_htod_async, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2")
AGREES(memset_d8_async, cuMemsetD8Async, "cuMemsetD8Async")
AGREES(module_load_data, cuModuleLoadData, "cuModuleLoadData")
AGREES(module_get_function, cuModuleGetFunction, "cuModuleGetFunction")
AGREES(func_load, cuFuncLoad, "cuFuncLoad")
AGREES(launch_kernel, cuLaunchKernel, "cuLaunchKernel")
AGREES(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange")
AGREES(stream_create_with_priority, cuStreamCreateWithPriority, "cuStreamCreateWithPriority")
AGREES(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2")
AGREES(stream_query, cuStreamQuery, "cuStreamQuery")
AGREES(stream_is_capturing, cuStreamIsCapturing, "cuStreamIsCapturing")
AGREES(stream_wait_event, cuStreamWaitEvent, "cuStreamWaitEvent")
AGREES(event_create, cuEventCreate, "cuEventCreate")
AGREES(event_destroy, cuEventDestroy, "cuEventDestroy_v2")
AGREES(event_record, cuEventRecord, "cuEventRecord")
AGREES(event_query, cuEventQuery, "cuEventQuery")
AGREES(event_elapsed_time, cuEventElapsedTime, "cuEventElapsedTime_v2")
AGREES(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode,
       "cuThreadExchangeStreamCaptureMode")
AGREES(get_error_name, cuGetErrorName, "cuGetErrorName")

static_assert(omnihvd::kCuComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(omnihvd::kCuComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(omnihvd::kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(omnihvd::kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(omnihvd::kCuHostPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(omnihvd::kCuHostDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(int(omnihvd::CuResult::not_ready) == CUDA_ERROR_NOT_READY);
static_assert(int(omnihvd::CuResult::stream_capture_implicit) ==
              CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == 2, "CudaScope's mode");
