// Intercepts ncclAllReduce, and the functions that make NCCL's groups of calls.
#pragma once

#include "nccl/call_type.h"

namespace omnihvd {

NcclResult allreduce(const NcclReduction& r) noexcept;
NcclResult group_start() noexcept;
NcclResult group_end() noexcept;
NcclResult group_simulate_end(void* info) noexcept;

bool in_group_of_calls();  // this thread

}  // namespace omnihvd
