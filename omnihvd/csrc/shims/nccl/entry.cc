// What the library exports: functions with NCCL's names, for any program (LD_PRELOAD), and with
// omnihvd_ before them, for PyTorch and Horovod, by the GOT hook.
#include <strings.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "shims/nccl/allreduce.h"
#include "shims/nccl/communicators.h"

namespace {

// Of programs into which the shim is preloaded: before CUDA reads it. (Python's hook does the
// same.)
__attribute__((constructor)) void prepare_cuda() {
  const char* const preloaded = std::getenv("LD_PRELOAD");
  if (preloaded == nullptr || std::strstr(preloaded, "omnihvd_nccl") == nullptr) return;
  const char* const way = std::getenv("OMNIHVD_GPU");
  if (way == nullptr || *way == 0 || strcasecmp(way, "original") == 0) return;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (strcasecmp(way, "stream") != 0) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace

#define OMNIHVD_STANDS_IN(name, parameters, call)                                            \
  extern "C" __attribute__((visibility("default"))) omnihvd::NcclResult name parameters {    \
    return call;                                                                             \
  }                                                                                          \
  extern "C"                                                                                 \
      __attribute__((visibility("default"))) omnihvd::NcclResult omnihvd_##name parameters { \
    return call;                                                                             \
  }

OMNIHVD_STANDS_IN(ncclAllReduce,
                  (const void* in, void* out, size_t count, omnihvd::NcclType type,
                   omnihvd::NcclOp op, omnihvd::NcclComm comm, omnihvd::CuStream stream),
                  omnihvd::allreduce({in, out, count, type, op, stream, comm}))
OMNIHVD_STANDS_IN(ncclGroupStart, (), omnihvd::group_start())
OMNIHVD_STANDS_IN(ncclGroupEnd, (), omnihvd::group_end())
OMNIHVD_STANDS_IN(ncclGroupSimulateEnd, (void* info), omnihvd::group_simulate_end(info))
OMNIHVD_STANDS_IN(ncclCommDestroy, (omnihvd::NcclComm comm), omnihvd::comm_destroy(comm))
OMNIHVD_STANDS_IN(ncclCommFinalize, (omnihvd::NcclComm comm), omnihvd::comm_finalize(comm))
OMNIHVD_STANDS_IN(ncclCommAbort, (omnihvd::NcclComm comm), omnihvd::comm_abort(comm))
OMNIHVD_STANDS_IN(ncclCommShrink,
                  (omnihvd::NcclComm parent, int* excluded, int n_excluded,
                   omnihvd::NcclComm* child, void* config, int flags),
                  omnihvd::comm_shrink(parent, excluded, n_excluded, child, config, flags))
OMNIHVD_STANDS_IN(ncclCommGetAsyncError, (omnihvd::NcclComm comm, omnihvd::NcclResult* error),
                  omnihvd::comm_get_async_error(comm, error))

// For nccl_hooks.way(): a Way, or -1 for OMNIHVD_GPU's again.
extern "C" __attribute__((visibility("default"))) void omnihvd_nccl_choose(int way) {
  omnihvd::choose_gpu_way(way < 0 ? std::nullopt
                                  : std::make_optional(static_cast<omnihvd::Way>(way)));
}
