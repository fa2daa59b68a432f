// What an ncclAllReduce is asked to do, in the engine's terms.
#pragma once

#include <cstdint>
#include <optional>

#include "base/reason.h"
#include "protocol/dtype.h"
#include "shims/nccl/reduction.h"

namespace omnihvd {

size_t width_of(NcclType type);
std::optional<DType> dtype_of(NcclType type);  // unsigned sums are the signed ones, bit by bit
inline uint64_t bytes_of(const NcclReduction& r) { return r.count * width_of(r.type); }
// Why the call is left to NCCL whatever the communicator is, or none.
Reason refusal_of(const NcclReduction& r);

}  // namespace omnihvd
