// The library's exports: functions with NCCL's names for any program (LD_PRELOAD), and with the
// prefix omnihvd_ for PyTorch and Horovod, which call them by the GOT hook.
#include <string>

#include "base/error.h"
#include "nccl/allreduce.h"
#include "nccl/communicators.h"

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

// For omnihvd.intercept.nccl.way(): a value that replaces OMNIHVD_GPU's, or null to use OMNIHVD_GPU
// again. Returns an error text that lives until the next call, or null.
extern "C" __attribute__((visibility("default"))) const char* omnihvd_nccl_choose(
    const char* value) {
  thread_local std::string problem;
  try {
    omnihvd::choose_gpu_way(value);
    return nullptr;
  } catch (const omnihvd::Error& error) {
    problem = error.what();
    return problem.c_str();
  }
}
