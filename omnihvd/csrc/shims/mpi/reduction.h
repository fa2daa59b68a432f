// The arguments of an MPI_Allreduce that the engine takes.
#pragma once

#include <mpi.h>

#include <string>

#include "protocol/dtype.h"

namespace omnihvd {

struct MpiReduction {
  const void* in;  // or MPI_IN_PLACE
  void* out;
  int count;
  MPI_Datatype type;
  MPI_Op op;
  DType dtype;
  std::string codecs = {};  // of the tensors that are its int32; empty: just int32
};

}  // namespace omnihvd
