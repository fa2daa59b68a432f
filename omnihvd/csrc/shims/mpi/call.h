// Calls of MPI that may be sums: those that the engine knows go to it, all else to MPI untouched.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "shims/mpi/exchange.h"

#define OMNIHVD_EXPORT extern "C" __attribute__((visibility("default")))

namespace omnihvd {

struct MpiCall {
  const char *name, *what;  // "MPI_Allreduce", "an allreduce"
  const void* in;
  void* out;
  int64_t count;  // of all elements; under 0: no such call
  MPI_Datatype type;
  MPI_Op op;
  MPI_Comm comm;
  // MPI's own, of these buffers.
  int (*by_mpi)(const MpiCall& call, const void* in, void* out);
  // Of a reduce-scatter: each rank's elements, as MPI_Reduce_scatter has them and as Call has.
  const int* counts = nullptr;
  std::vector<uint64_t> shares = {};
};

// Every decision depends on arguments alone that MPI wants equal on all ranks, and on what the
// ranks have told each other, so all ranks decide alike. Failures go to the communicator's error
// handler; Horovod's are returned only, and it raises HorovodInternalError.
int take_or_leave(const MpiCall& call, Caller caller) noexcept;

// 0 where count or type are none.
uint64_t bytes_of(int64_t count, MPI_Datatype type);

}  // namespace omnihvd
