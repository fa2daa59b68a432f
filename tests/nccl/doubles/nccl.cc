// As much of libnccl.so.2 as the shim and its tests use, between processes, on the double of CUDA.
//
// As NCCL: a communicator's collectives happen in the order of the calls, each when its stream gets
// there; a rank that is gone is an asynchronous error, and streams wait until the communicator is
// aborted. Each has a stream of its own, which shares the hardware's queues: a collective waits for
// what was on it, and it for the collective. NCCL_DOUBLE_CONNECT=1: the first small collective and
// the first large one of a kind return when all ranks have called it; what NVLink SHARP sums is a
// kind of its own. NCCL_DOUBLE_NONBLOCKING=1:
// calls return ncclInProgress, and happen a little later (NCCL_DOUBLE_DELAY_US), but on
// communicators that block by their config; a group has of one kind only.
// NCCL_LAUNCH_ORDER_IMPLICIT=1: collectives of a process follow each other in the order of the
// calls, whatever their communicators and streams.
// NCCL_DOUBLE_CALL_US: how long a thread is inside a call; to abort the communicator meanwhile is
// an error, as it is freed.
//
// A collective takes 20 us and a nanosecond a byte, by the clock of events, or what NCCL_DOUBLE_NS
// says. A communicator of the shim's own takes 600 MB of the device, as users report.
// It counts calls by their names; maxima of bytes, as those of the marks, by themselves ("marks").
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "communicator.h"
#include "reduce.h"

extern "C" bool double_wait_for_device(int seconds);
extern "C" bool double_lacks_memory(size_t bytes);

using doubles::Bytes;
using doubles::collective;
using doubles::forget;
using doubles::in_progress;
using doubles::internal_error;
using doubles::invalid_argument;
using doubles::keep;
using doubles::Result;
using doubles::shared;
using doubles::Shared;
using doubles::success;

struct ncclUniqueId {
  char path[128];
};

namespace {

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

std::string socket_path() {
  const char* folder = std::getenv("NCCL_DOUBLE_FOLDER");
  return std::string(folder ? folder : "/tmp") + "/" + std::to_string(std::random_device{}());
}

thread_local bool aborted_in_group = false;

// NCCL's frees after an abort wait for the device.
void wait_for_device() {
  if (!double_wait_for_device(20)) double_die("ncclCommAbort waits for a device that never ends");
}

// As NCCL: sums of float32 and float64, and of 16 bits and integers of 32 and 64 also extremes.
bool nvls_sums(int type, int op) {
  const bool floats = type == 7 || type == 8, bytes = type < 2;
  return !bytes && (op == 0 || (!floats && (op == 2 || op == 3)));
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
  if (double_lacks_memory(600'000'000)) return doubles::unhandled_cuda_error;
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
  return result == doubles::remote_error ? "a remote process exited"
                                         : "some error of NCCL's double";
}
extern "C" const char* ncclGetErrorString(Result result) { return pncclGetErrorString(result); }

NCCL_DOUBLE(ncclAllReduce,
            (const void* in, void* out, size_t n, int type, int op, ncclComm* comm,
             CUstream_st* stream),
            (in, out, n, type, op, comm, stream)) {
  const size_t bytes = n * doubles::width_of(type);
  const bool is_marks = type == 1 && op == 2;  // a maximum of bytes
  count(is_marks ? "marks" : "ncclAllReduce", bytes, comm ? comm->size : 0);
  if (in == nullptr || out == nullptr || bytes == 0) return n == 0 ? success : invalid_argument;
  const std::string what = std::string("allreduce ") + (nvls_sums(type, op) ? "by NVLS " : "");
  return collective(comm, stream, what + "of " + std::to_string(bytes), in, bytes, out, bytes,
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
  return doubles::begin_group(), success;
}
NCCL_DOUBLE(ncclGroupEnd, (), ()) {
  if (doubles::end_group() > 0) return success;
  if (double_fails("ncclGroupEnd")) return doubles::drop_group(), internal_error;
  if (std::exchange(aborted_in_group, false)) wait_for_device();
  return doubles::carry_out_group();
}

// Nothing of the group happens.
NCCL_DOUBLE(ncclGroupSimulateEnd, (void*), (nullptr)) {
  if (doubles::end_group() == 0) doubles::drop_group();
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
  if (doubles::group_depth() > 0)
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
// Bytes of this rank's such calls; of "ncclAllReduce of 3": on communicators of so many ranks.
extern "C" long double_nccl_bytes(const char* name) {
  return double_nccl_calls((std::string(name) + " bytes").c_str());
}
extern "C" long double_live_comms() { return doubles::live_comms(); }
