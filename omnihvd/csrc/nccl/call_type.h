// The arguments of an ncclAllReduce, and what they mean in the engine's terms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/reason.h"
#include "nccl/api.h"
#include "numeric/dtype.h"

namespace omnihvd {

struct NcclReduction {
  const void* in;
  void* out;
  size_t count;
  NcclType type;
  NcclOp op;
  CuStream stream;
  NcclComm comm;
};

size_t width_of(NcclType type);
std::optional<DType> dtype_of(NcclType type);  // unsigned and signed sums have the same bits
inline uint64_t bytes_of(const NcclReduction& r) { return r.count * width_of(r.type); }
// The fallback reason if NCCL makes the call for every communicator, or none.
Reason refusal_of(const NcclReduction& r);

}  // namespace omnihvd
