// As much of libnccl.so.2 as the shim and its tests use, between processes, on the double of CUDA.
//
// As NCCL: a communicator's collectives happen in the order of the calls, each when its stream gets
// there; a rank that is gone is an asynchronous error, and streams wait until the communicator is
// aborted. Each has a stream of its own, which shares the hardware's queues: a collective waits for
// what was on it, and it for the collective. NCCL_DOUBLE_CONNECT=1: the first small collective and
// the first large one of a kind return when all ranks have called it. NCCL_DOUBLE_NONBLOCKING=1:
// calls return ncclInProgress, and happen a little later (NCCL_DOUBLE_DELAY_US), but on
// communicators whose config says that they block; a group has of one kind only.
// NCCL_LAUNCH_ORDER_IMPLICIT=1: collectives of a process follow each other in the order of the
// calls, whatever their communicators and streams.
// NCCL_DOUBLE_CALL_US: how long a thread is inside a call; to abort the communicator meanwhile is
// an error, as it is freed.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "reduce.h"
#include "star.h"

struct CUstream_st;
struct CUctx_st;
extern "C" {
int cuCtxGetCurrent(CUctx_st** context);
void* double_host_of(uint64_t device_address, size_t bytes);
void double_queue(CUstream_st* stream, void (*work)(void*), void* argument);
CUstream_st* double_new_stream();
void double_end_stream(CUstream_st* stream);
void double_queue_after(CUstream_st* stream, CUstream_st* other);
void double_die(const char* what);
bool double_wait_for_device(int seconds);
bool double_fails(const char* call);
}

using doubles::Bytes;
using doubles::Star;

namespace {

enum Result {
  success,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress
};

}  // namespace

struct ncclUniqueId {
  char path[128];
};

struct ncclComm {
  ncclComm(const std::string& where, int r, int s, bool nonblocking)
      : path(where),
        star(where, r, s),
        rank(r),
        size(s),
        device(current_device()),
        returns_early(nonblocking) {}
  ~ncclComm() { double_end_stream(own); }

  static int current_device() {
    CUctx_st* context = nullptr;
    cuCtxGetCurrent(&context);
    if (context == nullptr) double_die("a communicator was made without a current device");
    int device;
    std::memcpy(&device, context, sizeof device);
    return device;
  }

  // Collectives take their turns in the order of the calls, whatever their streams.
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t calls = 0, done = 0;

  const std::string path;
  Star star;
  const int rank, size, device;
  const bool returns_early;
  CUstream_st* const own = double_new_stream();
  std::mutex connecting;
  std::unique_ptr<Star> connections;  // over which ranks meet at first uses
  std::set<std::string> connected;
  std::atomic<int> async_error{success};
  std::atomic<bool> aborted{false};
  std::atomic<int> pending{0};  // non-blocking calls that have not happened yet
  std::atomic<int> inside{0};   // threads in a call

  void abort() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      aborted = true;
      changed.notify_all();
    }
    star.abort();
  }
  bool wait_for_turn(uint64_t turn) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done == turn || aborted; });
    return !aborted;
  }
  void end_turn() {
    const std::lock_guard<std::mutex> lock(mutex);
    ++done;
    changed.notify_all();
  }
  void hang_until_aborted() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return aborted.load(); });
  }
};

namespace {

using Shared = std::shared_ptr<ncclComm>;

std::mutex comms_mutex;
std::map<ncclComm*, Shared>& comms() {
  static auto& map = *new std::map<ncclComm*, Shared>;
  return map;
}
Shared shared(ncclComm* comm) {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  const auto found = comms().find(comm);
  return found == comms().end() ? nullptr : found->second;
}
ncclComm* keep(Shared comm) {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  return (comms()[comm.get()] = comm).get();
}
void forget(ncclComm* comm) {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  comms().erase(comm);
}

std::mutex counts_mutex;
std::map<std::string, long>& counts() {
  static auto& map = *new std::map<std::string, long>;
  return map;
}
void count(const char* name, size_t bytes = 0, int ranks = 0) {
  const std::lock_guard<std::mutex> lock(counts_mutex);
  for (const std::string& key : {std::string(name), name + (" of " + std::to_string(ranks))}) {
    ++counts()[key];
    counts()[key + " bytes"] += long(bytes);
  }
}

bool nonblocking() {
  static const char* const setting = std::getenv("NCCL_DOUBLE_NONBLOCKING");
  return setting != nullptr && *setting == '1';
}

thread_local int depth = 0;
struct Queued {
  Shared comm;
  std::function<void()> work;
};
thread_local std::vector<Queued> group;

Result carry_out(std::vector<Queued> calls) {
  const auto early = [](const Queued& call) { return call.comm->returns_early; };
  if (std::none_of(calls.begin(), calls.end(), early)) {
    for (const Queued& call : calls) call.work();
    return success;
  }
  if (!std::all_of(calls.begin(), calls.end(), early))
    double_die("blocking and non-blocking communicators in one group");
  for (const Queued& call : calls) ++call.comm->pending;
  std::thread([calls = std::move(calls)] {
    static const char* const delay = std::getenv("NCCL_DOUBLE_DELAY_US");
    usleep(delay != nullptr ? unsigned(std::atoi(delay)) : 3000);
    for (const Queued& call : calls) {
      call.work();
      --call.comm->pending;
    }
  }).detach();
  return in_progress;
}

struct Collective {
  Shared comm;
  uint64_t turn;
  std::string what;
  const char* in;
  char* out;
  size_t in_bytes, out_bytes;
  Star::Combine combine;

  static void run(void* argument) {
    const std::unique_ptr<Collective> c(static_cast<Collective*>(argument));
    if (!c->comm->wait_for_turn(c->turn)) return;
    Bytes result;
    if (c->comm->star.exchange(c->what, Bytes(c->in, c->in_bytes), c->combine, &result)) {
      if (result.size() != c->out_bytes) double_die("ranks give different counts");
      std::memcpy(c->out, result.data(), result.size());
      c->comm->end_turn();
      return;
    }
    if (!c->comm->aborted) c->comm->async_error = remote_error;
    c->comm->hang_until_aborted();
  }
};

// What NCCL does at the first use of an algorithm: ranks exchange addresses.
void connect_once(ncclComm& comm, const std::string& what, size_t bytes) {
  static const char* const setting = std::getenv("NCCL_DOUBLE_CONNECT");
  if (setting == nullptr || *setting != '1') return;
  const std::lock_guard<std::mutex> lock(comm.connecting);
  const std::string kind = what.substr(0, 9) + (bytes < 65536 ? " small" : " large");
  if (!comm.connected.insert(kind).second) return;
  if (!comm.connections)
    comm.connections = std::make_unique<Star>(comm.path + "c", comm.rank, comm.size);
  Bytes unused;
  comm.connections->exchange(kind, "", [](const std::vector<Bytes>& all) { return all; }, &unused);
}

// If NCCL_LAUNCH_ORDER_IMPLICIT says so.
void in_order_of_calls(CUstream_st* stream, const std::function<void()>& queue) {
  static const char* const setting = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (setting == nullptr || *setting != '1') return queue();
  static std::mutex mutex;
  static CUstream_st* const order = double_new_stream();
  const std::lock_guard<std::mutex> lock(mutex);
  double_queue_after(stream, order);
  queue();
  double_queue_after(order, stream);
}

Result collective(ncclComm* handle, CUstream_st* stream, const std::string& what, const void* in,
                  size_t in_bytes, void* out, size_t out_bytes, Star::Combine combine) {
  if (double_fails("an NCCL collective")) return internal_error;
  const Shared comm = shared(handle);
  if (!comm) return invalid_argument;
  static const char* const stay = std::getenv("NCCL_DOUBLE_CALL_US");
  ++comm->inside;
  if (stay != nullptr) usleep(unsigned(std::atoi(stay)));
  --comm->inside;
  if (comm->pending > 0) return invalid_usage;
  if (comm->async_error != success) return Result(comm->async_error.load());
  const auto* from = static_cast<char*>(double_host_of(reinterpret_cast<uint64_t>(in), in_bytes));
  auto* to = static_cast<char*>(double_host_of(reinterpret_cast<uint64_t>(out), out_bytes));
  if (from == nullptr || to == nullptr) return invalid_argument;
  Queued call{comm, [=] {
                connect_once(*comm, what, in_bytes);
                uint64_t turn;
                {
                  const std::lock_guard<std::mutex> lock(comm->mutex);
                  turn = comm->calls++;
                }
                double_queue_after(stream, comm->own);
                in_order_of_calls(stream, [&] {
                  double_queue(
                      stream, &Collective::run,
                      new Collective{comm, turn, what, from, to, in_bytes, out_bytes, combine});
                });
                double_queue_after(comm->own, stream);
              }};
  if (depth > 0) {
    group.push_back(std::move(call));
    return success;
  }
  return carry_out({call});
}

std::string socket_path() {
  const char* folder = std::getenv("NCCL_DOUBLE_FOLDER");
  return std::string(folder ? folder : "/tmp") + "/" + std::to_string(std::random_device{}());
}

thread_local bool aborted_in_group = false;

// What NCCL frees when a communicator has been aborted, waits for the device.
void wait_for_device() {
  if (!double_wait_for_device(20)) double_die("ncclCommAbort waits for a device that never ends");
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all += part;
  return all;
}

}  // namespace

// Under both names, as in NCCL.
#define NCCL_DOUBLE(name, parameters, arguments)                  \
  extern "C" Result p##name parameters;                           \
  extern "C" Result name parameters { return p##name arguments; } \
  extern "C" Result p##name parameters

NCCL_DOUBLE(ncclGetUniqueId, (ncclUniqueId * id), (id)) {
  if (double_fails("ncclGetUniqueId")) return internal_error;
  std::strcpy(id->path, socket_path().c_str());
  return success;
}

NCCL_DOUBLE(ncclCommInitRank, (ncclComm * *comm, int size, ncclUniqueId id, int rank),
            (comm, size, id, rank)) {
  *comm = keep(std::make_shared<ncclComm>(id.path, rank, size, nonblocking()));
  return success;
}

// As of NCCL 2.14; the magic number is that of NCCL_CONFIG_INITIALIZER.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};
NCCL_DOUBLE(ncclCommInitRankConfig,
            (ncclComm * *comm, int size, ncclUniqueId id, int rank, Config* config),
            (comm, size, id, rank, config)) {
  count("ncclCommInitRankConfig");
  if (double_fails("ncclCommInitRankConfig")) return internal_error;
  if (config->magic != 0xcafebeef) return invalid_argument;
  *comm = keep(std::make_shared<ncclComm>(id.path, rank, size, config->blocking == 0));
  return success;
}

NCCL_DOUBLE(ncclCommCount, (ncclComm * comm, int* n), (comm, n)) {
  return *n = comm->size, success;
}
NCCL_DOUBLE(ncclCommUserRank, (ncclComm * comm, int* rank), (comm, rank)) {
  return *rank = comm->rank, success;
}
NCCL_DOUBLE(ncclCommCuDevice, (ncclComm * comm, int* device), (comm, device)) {
  return *device = comm->device, success;
}
NCCL_DOUBLE(ncclCommGetAsyncError, (ncclComm * comm, Result* error), (comm, error)) {
  const Shared alive = shared(comm);
  if (!alive) return invalid_argument;
  *error = Result(alive->async_error.load());
  if (*error == success && alive->pending > 0) *error = in_progress;
  return success;
}

extern "C" const char* pncclGetErrorString(Result result) {
  return result == remote_error ? "a remote process exited" : "some error of NCCL's double";
}
extern "C" const char* ncclGetErrorString(Result result) { return pncclGetErrorString(result); }

NCCL_DOUBLE(ncclAllReduce,
            (const void* in, void* out, size_t n, int type, int op, ncclComm* comm,
             CUstream_st* stream),
            (in, out, n, type, op, comm, stream)) {
  const size_t bytes = n * doubles::width_of(type);
  count("ncclAllReduce", bytes, comm ? comm->size : 0);
  if (in == nullptr || out == nullptr || bytes == 0) return n == 0 ? success : invalid_argument;
  return collective(comm, stream, "allreduce of " + std::to_string(bytes), in, bytes, out, bytes,
                    [=](const std::vector<Bytes>& all) {
                      return std::vector<Bytes>(all.size(), doubles::reduced(all, type, op));
                    });
}

NCCL_DOUBLE(ncclReduceScatter,
            (const void* in, void* out, size_t n, int type, int op, ncclComm* comm,
             CUstream_st* stream),
            (in, out, n, type, op, comm, stream)) {
  const size_t bytes = n * doubles::width_of(type);
  count("ncclReduceScatter", bytes * size_t(comm->size), comm->size);
  return collective(comm, stream, "reduce-scatter of " + std::to_string(bytes), in,
                    bytes * size_t(comm->size), out, bytes, [=](const std::vector<Bytes>& all) {
                      const Bytes sums = doubles::reduced(all, type, op);
                      std::vector<Bytes> parts;
                      for (size_t i = 0; i < all.size(); ++i)
                        parts.push_back(sums.substr(i * bytes, bytes));
                      return parts;
                    });
}

NCCL_DOUBLE(ncclAllGather,
            (const void* in, void* out, size_t n, int type, ncclComm* comm, CUstream_st* stream),
            (in, out, n, type, comm, stream)) {
  const size_t bytes = n * doubles::width_of(type);
  count("ncclAllGather", bytes, comm->size);
  return collective(comm, stream, "allgather of " + std::to_string(bytes), in, bytes, out,
                    bytes * size_t(comm->size), [](const std::vector<Bytes>& all) {
                      return std::vector<Bytes>(all.size(), joined(all));
                    });
}

NCCL_DOUBLE(ncclGroupStart, (), ()) {
  if (double_fails("ncclGroupStart")) return internal_error;
  return ++depth, success;
}
NCCL_DOUBLE(ncclGroupEnd, (), ()) {
  if (--depth > 0) return success;
  if (double_fails("ncclGroupEnd")) return group.clear(), internal_error;
  if (std::exchange(aborted_in_group, false)) wait_for_device();
  return carry_out(std::exchange(group, {}));
}

// Nothing of the group happens.
NCCL_DOUBLE(ncclGroupSimulateEnd, (void*), (nullptr)) {
  if (--depth == 0) group.clear();
  return success;
}

NCCL_DOUBLE(ncclCommFinalize, (ncclComm * comm), (comm)) {
  return comm ? success : invalid_argument;
}
NCCL_DOUBLE(ncclCommDestroy, (ncclComm * comm), (comm)) { return forget(comm), success; }
NCCL_DOUBLE(ncclCommAbort, (ncclComm * comm), (comm)) {
  const Shared alive = shared(comm);
  if (!alive) return invalid_argument;
  if (alive->inside > 0) double_die("ncclCommAbort while another thread is in a call");
  alive->abort();
  forget(comm);
  if (depth > 0)
    aborted_in_group = true;
  else
    wait_for_device();
  return success;
}

NCCL_DOUBLE(ncclCommShrink,
            (ncclComm * parent, int* excluded, int n, ncclComm** child, void*, int flags),
            (parent, excluded, n, child, nullptr, flags)) {
  count("ncclCommShrink");
  const auto before = [&](int rank) {  // how many of those that stay
    int stay = 0;
    for (int r = 0; r < rank; ++r) stay += std::find(excluded, excluded + n, r) == excluded + n;
    return stay;
  };
  if ((flags & 1) == 0) return invalid_argument;  // the tests always abort what is under way
  parent->abort();
  *child = keep(std::make_shared<ncclComm>(parent->path + "s", before(parent->rank),
                                           before(parent->size), parent->returns_early));
  return success;
}

// --- for the tests -----------------------------------------------------------------------------

extern "C" long double_nccl_calls(const char* name) {
  const std::lock_guard<std::mutex> lock(counts_mutex);
  return counts()[name];
}
// That this rank has given such calls; of "ncclAllReduce of 3": on communicators of so many ranks.
extern "C" long double_nccl_bytes(const char* name) {
  return double_nccl_calls((std::string(name) + " bytes").c_str());
}
extern "C" long double_live_comms() {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  return long(comms().size());
}
