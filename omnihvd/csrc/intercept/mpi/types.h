// Recognises the MPI reductions that are sums the engine knows.
#pragma once

#include <mpi.h>

#include <optional>

#include "base/reason.h"
#include "numeric/dtype.h"

namespace omnihvd {

struct MpiSum {
  std::optional<DType> dtype;     // of the elements, when the engine can sum them
  Reason refusal = Reason::none;  // else why not
};

// Recognises MPI_SUM over the predefined 8, 32 and 64 bit integers, float and double. Also
// recognises commutative user-defined operations over a contiguous two-byte type if they add
// float16 or bfloat16 numbers: MPI has no such types, so programs define their own. Each call tries
// the operation on a few numbers. (Nothing is remembered: a handle may be freed and reused for
// another operation, and a rank cannot tell whether the handle was the same on another rank.)
//
// The answer depends only on the meaning of the arguments, so it is the same on all ranks. A null
// or invalid handle is refused: MPI reports it.
MpiSum recognise_sum(MPI_Datatype type, MPI_Op op);

}  // namespace omnihvd
