// The program's NCCL communicators, each with its group, and how they end. Any thread.
#pragma once

#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "nccl/group.h"

namespace omnihvd {

std::shared_ptr<NcclGroup> find_group(NcclComm comm);          // or null
std::shared_ptr<NcclGroup> find_or_make_group(NcclComm comm);  // throws Error

// NCCL functions that are intercepted.
NcclResult comm_destroy(NcclComm comm) noexcept;
NcclResult comm_finalize(NcclComm comm) noexcept;
NcclResult comm_abort(NcclComm comm) noexcept;
NcclResult comm_get_async_error(NcclComm comm, NcclResult* error) noexcept;
NcclResult comm_shrink(NcclComm parent, int* excluded, int n_excluded, NcclComm* child,
                       void* config, int flags) noexcept;

// Frees what this thread has aborted. Must not run inside a group of calls: freeing waits for the
// device, which may be waiting for what that group aborts next.
void reclaim_aborted();

// NCCL's functions throw no exceptions.
template <typename Call>
NcclResult guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
    return NcclResult::system_error;
  }
}

}  // namespace omnihvd
