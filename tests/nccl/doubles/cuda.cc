// As much of libcuda.so.1 as the NCCL shim uses, for tests where there is no GPU. A mistake that a
// GPU does not forgive is an error here: a call without a context or in a host function, copies
// that miss their memory, kernels that fail (kernels.h).
//
// A "cubin" is a file with the path of the emulated kernels.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "kernels.h"
#include "memory.h"
#include "stream.h"

using doubles::die;
using doubles::Event;
using doubles::host_of;
using doubles::kernels_are;
using doubles::Kind;
using doubles::Stream;

struct CUctx_st {
  int device;
};
struct CUstream_st {
  std::shared_ptr<Stream> stream;
  std::mutex mutex = {};
  std::deque<uint64_t> launched = {};  // the last kernels' numbers
};
struct CUevent_st {
  Event event;
};
struct CUmod_st {
  void* library;
};
struct CUfunc_st {
  std::string name;
  void* entry;
};

extern "C" bool double_fails(const char* call);

namespace {

enum Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  invalid_image = 200,
  invalid_context = 201,
  not_found = 500,
  not_ready = 600,
  launch_failed = 719,
  not_permitted = 800,
};

CUctx_st contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
thread_local CUctx_st* current = nullptr;
thread_local int capture_mode = 0;
std::atomic<long> events{0}, streams{0}, calls{0};

// As drivers may: while a call waits for the device no other thread's gets on.
// CUDA_DOUBLE_LOCKS=1.
std::mutex driver_mutex;
std::unique_lock<std::mutex> driver_lock() {
  static const char* const setting = std::getenv("CUDA_DOUBLE_LOCKS");
  if (setting == nullptr || *setting != '1') return {};
  return std::unique_lock<std::mutex>(driver_mutex);
}
void wait_for_device() {
  const auto lock = driver_lock();
  doubles::wait_for_all_streams();
}

std::shared_ptr<Stream> shared(CUstream_st* stream) {
  static CUstream_st& legacy = *new CUstream_st{Stream::create(0)};
  return (stream ? stream : &legacy)->stream;
}
Stream& of(CUstream_st* stream) { return *shared(stream); }

// After a kernel has failed every call says so. For the tests.
std::atomic<bool> sticky_error{false};

// Which call fails: the one that makes this 0.
std::atomic<long> until_failure{0};
std::atomic<const char*> failed_call{nullptr};
std::string& failing_name() {
  static auto& name = *new std::string;
  return name;
}

// For functions that work in a context, or may wait for the device; those that free always do.
Result permitted(bool may_fail = true, const char* call = __builtin_FUNCTION()) {
  ++calls;
  if (!current) return invalid_context;
  {
    const auto passed = driver_lock();
  }
  if (sticky_error) return launch_failed;
  return may_fail && double_fails(call) ? launch_failed : success;
}

// As CUDA: a launch waits while 1,024 kernels of its stream have not ended (CUDA_DOUBLE_LAUNCHES).
void wait_for_room(CUstream_st& stream) {
  static const char* const setting = std::getenv("CUDA_DOUBLE_LAUNCHES");
  static const size_t most = setting ? size_t(std::atoi(setting)) : 1024;
  std::unique_lock<std::mutex> lock(stream.mutex);
  stream.launched.push_back(stream.stream->queued() + 1);  // the kernel that comes now
  if (stream.launched.size() <= most) return;
  const uint64_t oldest = stream.launched.front();
  stream.launched.pop_front();
  lock.unlock();
  stream.stream->wait_until_done(oldest);
}

// An allocation of more fails.
size_t most(const char* variable) {
  const char* const setting = std::getenv(variable);
  return setting ? size_t(std::atoll(setting)) : ~size_t(0);
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return success; }
int cuDriverGetVersion(int* version) { return *version = 13000, success; }
int cuDeviceGetCount(int* count) { return *count = 8, success; }
int cuDeviceGet(int* device, int ordinal) {
  return ordinal < 8 ? (*device = ordinal, success) : invalid_value;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;  // compute capability 9.0
  return success;
}
int cuDevicePrimaryCtxRetain(CUctx_st** context, int device) {
  return *context = &contexts[device], success;
}
int cuCtxGetCurrent(CUctx_st** context) { return *context = current, success; }
int cuCtxSetCurrent(CUctx_st* context) { return current = context, success; }

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  if (const Result bad = permitted()) return bad;
  if (bytes > most("CUDA_DOUBLE_MOST_DEVICE_BYTES")) return out_of_memory;
  *address = reinterpret_cast<uint64_t>(doubles::allocate(bytes, Kind::device));
  return *address ? success : out_of_memory;
}
int cuMemFree_v2(uint64_t address) {
  if (const Result bad = permitted(false)) return bad;
  wait_for_device();
  return doubles::release(reinterpret_cast<void*>(address), Kind::device) ? success : invalid_value;
}
int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  if (const Result bad = permitted()) return bad;
  if (bytes > most("CUDA_DOUBLE_MOST_PINNED_BYTES")) return out_of_memory;
  *address = doubles::allocate(bytes, Kind::pinned);
  return *address ? success : out_of_memory;
}
int cuMemFreeHost(void* address) {
  if (const Result bad = permitted(false)) return bad;
  wait_for_device();
  return doubles::release(address, Kind::pinned) ? success : invalid_value;
}
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) {
  *device = doubles::device_of(host);
  return *device ? success : invalid_value;
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, CUstream_st* stream) {
  if (const Result bad = permitted()) return bad;
  const uint8_t* const source = host_of(from, bytes);
  // From pageable memory the driver copies before it returns, and not asynchronously.
  if (source == nullptr || !doubles::is_pinned(to, bytes)) return invalid_value;
  of(stream).queue([=] { std::memcpy(to, source, bytes); });
  return success;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, CUstream_st* stream) {
  if (const Result bad = permitted()) return bad;
  uint8_t* const target = host_of(to, bytes);
  if (target == nullptr || !doubles::is_pinned(from, bytes)) return invalid_value;
  of(stream).queue([=] { std::memcpy(target, from, bytes); });
  return success;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, CUstream_st* stream) {
  if (const Result bad = permitted()) return bad;
  uint8_t* const target = host_of(to, bytes);
  if (target == nullptr) return invalid_value;
  of(stream).queue([=] { std::memset(target, value, bytes); });
  return success;
}

int cuModuleLoadData(CUmod_st** module, const void* image) {
  if (const Result bad = permitted()) return bad;
  void* const library = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return invalid_image;
  if (std::getenv("CUDA_DOUBLE_LOCKS") != nullptr) wait_for_device();  // as drivers may
  *module = new CUmod_st{library};
  return success;
}
int cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  void* const entry = dlsym(module->library, ("run_" + std::string(name)).c_str());
  if (entry == nullptr) return not_found;
  *function = new CUfunc_st{name, entry};
  return success;
}
int cuFuncLoad(CUfunc_st*) { return permitted(); }

int cuLaunchKernel(CUfunc_st* function, unsigned grid, unsigned, unsigned, unsigned threads,
                   unsigned, unsigned, unsigned, CUstream_st* stream, void** a, void**) {
  if (const Result bad = permitted(true, "cuLaunchKernel")) return bad;
  if (stream != nullptr) wait_for_room(*stream);
  doubles::launch(function->name, function->entry, grid, threads, of(stream), a);
  if (kernels_are("blocking")) of(stream).wait_until_done(of(stream).queued());
  return success;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (const Result bad = permitted()) return bad;
  *least = 0;
  *greatest = -5;
  return success;
}
int cuStreamCreateWithPriority(CUstream_st** stream, unsigned, int priority) {
  if (const Result bad = permitted()) return bad;
  *stream = new CUstream_st{Stream::create(priority)};
  ++streams;
  return success;
}
int cuStreamCreate(CUstream_st** stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}
int cuStreamDestroy_v2(CUstream_st* stream) {
  if (const Result bad = permitted(false)) return bad;
  stream->stream->close();
  delete stream;
  --streams;
  return success;
}
int cuStreamQuery(CUstream_st* stream) {
  return sticky_error ? launch_failed : of(stream).idle() ? success : not_ready;
}
int cuStreamSynchronize(CUstream_st* stream) {
  of(stream).wait_until_done(of(stream).queued());
  return success;
}
int cuStreamIsCapturing(CUstream_st* stream, int* status) {
  if (const Result bad = permitted()) return bad;
  return *status = of(stream).capturing, success;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), success; }

int cuEventCreate(CUevent_st** event, unsigned) {
  if (const Result bad = permitted()) return bad;
  *event = new CUevent_st;
  ++events;
  return success;
}
int cuEventDestroy_v2(CUevent_st* event) {
  delete event;
  --events;
  return success;
}
int cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  if (const Result bad = permitted()) return bad;
  const std::lock_guard<std::mutex> lock(event->event.mutex);
  event->event.stream = shared(stream);
  event->event.spent = std::make_shared<std::atomic<uint64_t>>(0);
  event->event.number = event->event.stream->queue(
      [at = event->event.spent, from = event->event.stream] { *at = from->spent(); });
  return success;
}
int cuEventElapsedTime(float* ms, CUevent_st* begin, CUevent_st* end) {
  if (!begin->event.spent || !end->event.spent) return invalid_value;
  return *ms = float(double(*end->event.spent - *begin->event.spent) / 1e6), success;
}
int cuEventQuery(CUevent_st* event) {
  driver_lock();
  if (sticky_error) return launch_failed;
  const std::lock_guard<std::mutex> lock(event->event.mutex);
  const auto& stream = event->event.stream;
  return !stream || stream->has_done(event->event.number) ? success : not_ready;
}
int cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  if (const Result bad = permitted()) return bad;
  const std::lock_guard<std::mutex> lock(event->event.mutex);
  if (const auto other = event->event.stream)
    of(stream).queue_wait(
        [other, number = event->event.number] { other->wait_until_done(number); });
  return success;
}
int cuGetErrorName(int result, const char** name) {
  *name = result == invalid_context ? "CUDA_ERROR_INVALID_CONTEXT"
          : result == invalid_value ? "CUDA_ERROR_INVALID_VALUE"
          : result == invalid_image ? "CUDA_ERROR_INVALID_IMAGE"
          : result == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == launch_failed ? "CUDA_ERROR_LAUNCH_FAILED"
                                    : "CUDA_ERROR_UNKNOWN";
  return success;
}

// --- for the tests and for the double of NCCL --------------------------------------------------

void* double_host_of(uint64_t device_address, size_t bytes) {
  return host_of(device_address, bytes);
}
void double_queue(CUstream_st* stream, void (*work)(void*), void* argument) {
  const uint64_t number = of(stream).queue([=] {
    std::unique_lock<std::mutex> alone(doubles::device_mutex(), std::defer_lock);
    if (kernels_are("alone")) alone.lock();
    work(argument);
  });
  if (kernels_are("blocking")) of(stream).wait_until_done(number);
}
bool double_lacks_memory(size_t bytes) { return bytes > most("CUDA_DOUBLE_MOST_DEVICE_BYTES"); }
void double_spend(uint64_t ns) { Stream::spend(ns); }
CUstream_st* double_new_stream() { return new CUstream_st{Stream::create(0)}; }
void double_end_stream(CUstream_st* stream) {
  stream->stream->close();
  delete stream;
}
void double_queue_after(CUstream_st* stream, CUstream_st* other) {
  of(stream).queue_wait(
      [other = shared(other), number = of(other).queued()] { other->wait_until_done(number); });
}
void double_fail_for_good() { sticky_error = true; }
void double_end_in_rest() { doubles::end_in_rest(); }
bool double_wait_for_device(int seconds) {
  for (int i = 0; i < 1000 * seconds; ++i, usleep(1000))
    if (doubles::all_streams_idle()) return true;
  return false;
}
void double_set_capturing(CUstream_st* stream, int status) { of(stream).capturing = status; }
size_t double_live_pieces() { return doubles::live_pieces(); }
long double_live_events() { return events; }
long double_live_streams() { return streams; }
long double_driver_calls() { return calls; }
void double_die(const char* what) { die(what); }
// The number-th of this process's calls from now on fails, be it CUDA's or NCCL's; 0: none does.
void double_fail_call(long number) {
  failed_call = nullptr;
  until_failure = number;
}
const char* double_failed_call() { return failed_call; }  // null: none has
// The next call of that name fails.
void double_fail_named(const char* call) {
  failing_name() = call;
  double_fail_call(1);
}
bool double_fails(const char* call) {
  if (!failing_name().empty() && failing_name() != call) return false;
  if (until_failure <= 0 || --until_failure != 0) return false;
  failed_call = call;
  return true;
}
}
