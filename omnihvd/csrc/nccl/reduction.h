// The arguments of an ncclAllReduce.
#pragma once

#include <cstddef>

#include "nccl/api.h"

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

}  // namespace omnihvd
