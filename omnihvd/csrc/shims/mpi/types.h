// Which MPI reductions are sums that the engine knows.
#pragma once

#include <mpi.h>

#include <optional>

#include "base/reason.h"
#include "protocol/dtype.h"

namespace omnihvd {

struct MpiSum {
  std::optional<DType> dtype;     // of the elements, when the engine can sum them
  Reason refusal = Reason::none;  // else why not
};

// MPI_SUM over the predefined 8, 32 and 64 bit integers, float and double; and commutative
// user-defined operations over a contiguous two-byte type that turn out to add float16 or bfloat16
// numbers: MPI has no such types, so programs define their own. The operation is tried on a few
// numbers at each call. (A handle may be freed and used again for something else; no rank
// could tell that on another one the handle was the same, so nothing is remembered.)
//
// The answer depends on what the arguments mean alone, so it is the same on all ranks. A null or
// invalid handle is refused: MPI reports it.
MpiSum recognise_sum(MPI_Datatype type, MPI_Op op);

}  // namespace omnihvd
