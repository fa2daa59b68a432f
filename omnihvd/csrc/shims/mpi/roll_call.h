// Which ranks of a communicator run omnihvd: to be known before anything is done that needs all.
//
// A rank without omnihvd is in a collective of MPI meanwhile, or anywhere else. Were ours a
// collective, too, an MPI might match the two; messages from rank to rank match no collective. They
// have a tag of their own, and go to no rank that has not spoken itself, but to rank 0.
//
// A receive of the program that takes any tag could catch them. So this is for communicators on
// which there are none: Horovod's own, and MPI_COMM_WORLD before MPI_Init returns (world.h).
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "sums/meeting.h"

namespace omnihvd {

// Each of the ranks that have omnihvd must call this, at about the same time. Returns the ranks
// that did not come within patience.limit_s, ascending: what rank 0 found, or, if rank 0 does not
// answer, rank 0 alone. At most kMostMissing. Throws Error if MPI fails.
std::vector<int> missing_ranks(MPI_Comm comm, const Patience& patience);
constexpr size_t kMostMissing = 100;

// Of each rank the number in MPI_COMM_WORLD, or MPI_UNDEFINED.
std::vector<int> ranks_in_world(MPI_Comm comm);

// "rank 2, rank 5 (3, 7 in MPI_COMM_WORLD)", the latter where the numbers differ.
std::string names_of(const std::vector<int>& ranks, MPI_Comm comm);

}  // namespace omnihvd
