// The part of NCCL's C interface that the shim calls and intercepts. Declared here, so that the
// build needs no NCCL. The values are those of nccl.h and do not change between its versions.
#pragma once

#include <cstddef>

#include "nccl/cuda_driver.h"

struct ncclComm;

namespace omnihvd {

using NcclComm = ncclComm*;

enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,  // for non-blocking communicators: ask again
};

inline bool is_error(NcclResult result) {
  return result != NcclResult::success && result != NcclResult::in_progress;
}

constexpr int kNcclShrinkAbort = 1;  // ncclCommShrink: aborts the parent's work under way

enum class NcclOp : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };  // more: by programs

enum class NcclType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

// Identifies a new communicator: all ranks with the same id join it.
struct NcclUniqueId {
  char bytes[128];
};

// As in NCCL 2.14, which later versions also read; their additional fields have defaults.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 1;
};

// A function of this process's NCCL; null if that has none. Throws Error if it is required.
FoundFunction in_nccl(const char* symbol, bool required = true);

// NCCL's own functions, under the names (pnccl...) that a preloaded library does not replace.
struct NcclApi {
  NcclResult (*all_reduce)(const void* in, void* out, size_t count, NcclType, NcclOp, NcclComm,
                           CuStream) = in_nccl("pncclAllReduce");
  NcclResult (*reduce_scatter)(const void* in, void* out, size_t out_count, NcclType, NcclOp,
                               NcclComm, CuStream) = in_nccl("pncclReduceScatter");
  NcclResult (*all_gather)(const void* in, void* out, size_t in_count, NcclType, NcclComm,
                           CuStream) = in_nccl("pncclAllGather");
  NcclResult (*group_start)() = in_nccl("pncclGroupStart");
  NcclResult (*group_end)() = in_nccl("pncclGroupEnd");
  // Null before NCCL 2.22.
  NcclResult (*group_simulate_end)(void* info) = in_nccl("pncclGroupSimulateEnd", false);
  NcclResult (*comm_count)(NcclComm, int* count) = in_nccl("pncclCommCount");
  NcclResult (*comm_user_rank)(NcclComm, int* rank) = in_nccl("pncclCommUserRank");
  NcclResult (*comm_device)(NcclComm, int* device) = in_nccl("pncclCommCuDevice");
  NcclResult (*comm_get_async_error)(NcclComm,
                                     NcclResult* error) = in_nccl("pncclCommGetAsyncError");
  NcclResult (*comm_destroy)(NcclComm) = in_nccl("pncclCommDestroy");
  NcclResult (*comm_abort)(NcclComm) = in_nccl("pncclCommAbort");
  // Null before NCCL 2.14.
  NcclResult (*comm_finalize)(NcclComm) = in_nccl("pncclCommFinalize", false);
  NcclResult (*get_unique_id)(NcclUniqueId*) = in_nccl("pncclGetUniqueId");
  // Null before NCCL 2.14.
  NcclResult (*comm_init_rank_config)(NcclComm*, int ranks, NcclUniqueId, int rank,
                                      const NcclConfig*) = in_nccl("pncclCommInitRankConfig",
                                                                   false);
  // Null before NCCL 2.27.
  NcclResult (*comm_shrink)(NcclComm parent, int* excluded, int n_excluded, NcclComm* child,
                            void* config, int flags) = in_nccl("pncclCommShrink", false);
  const char* (*error_string)(NcclResult) = in_nccl("pncclGetErrorString");
};

// The NCCL of this process, which the program is linked to or has loaded. Throws Error if there is
// none.
const NcclApi& nccl();

// Throws Error naming `what` if the result is an error.
void check_nccl(NcclResult result, const char* what);

}  // namespace omnihvd
