// MPI calls that may be sums: the engine makes those that it knows; MPI makes all others unchanged.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "intercept/mpi/exchange.h"

#define OMNIHVD_EXPORT extern "C" __attribute__((visibility("default")))

namespace omnihvd {

struct MpiCall {
  const char *name, *what;  // "MPI_Allreduce", "an allreduce"
  const void* in;
  void* out;
  int64_t count;  // of all elements; negative: invalid
  MPI_Datatype type;
  MPI_Op op;
  MPI_Comm comm;
  // Makes MPI's own call, with these buffers.
  int (*by_mpi)(const MpiCall& call, const void* in, void* out);
  // For a reduce-scatter: each rank's elements, as in MPI_Reduce_scatter and in Call.
  const int* counts = nullptr;
  std::vector<uint64_t> shares = {};
};

// Every decision depends only on arguments that MPI requires to be equal on all ranks, and on what
// the ranks have told each other, so all ranks decide alike. Failures go to the communicator's
// error handler. For Horovod they are only returned, and it raises HorovodInternalError.
int take_or_leave(const MpiCall& call, Caller caller) noexcept;

// 0 if count or type is invalid.
uint64_t bytes_of(int64_t count, MPI_Datatype type);

}  // namespace omnihvd
