// One ncclAllReduce with a look at its blocks: queues all steps of a sum on the union, or the look
// and NCCL's own call.
#pragma once

#include "nccl/group.h"

namespace omnihvd {

// Makes the original call, because it is faster.
NcclResult call_original(const NcclReduction& r, int ranks);

// A call that fails has failed for good, and is logged.
NcclResult sum_on_union(NcclGroup& group, const UnionSum& sum);

}  // namespace omnihvd
