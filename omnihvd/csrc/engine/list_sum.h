// Sums of lists of blocks over a group.
#pragma once

#include "engine/session.h"
#include "protocol/block_list.h"

namespace omnihvd {

// Collective. The sum over all ranks' lists, to call.out or `sums`. Throws Error as
// Group::allreduce; on all ranks if they differ in length, blocks or dtype, or one has an
// impossible list.
void sum_lists(Group& group, const ListCall& call, ListedSums* sums);

}  // namespace omnihvd
