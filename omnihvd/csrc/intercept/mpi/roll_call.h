// Finds which ranks of a communicator run omnihvd, before any step that needs all ranks.
//
// A rank without omnihvd is meanwhile in a collective of MPI, or anywhere else. If our step were a
// collective, too, an MPI might match the two. Point-to-point messages match no collective. They
// have a tag of their own. A rank sends them only to rank 0, or to ranks from which it has received
// one.
//
// A receive of the program with any tag could catch these messages. So use this only for
// communicators without such receives: Horovod's own, and MPI_COMM_WORLD before MPI_Init returns
// (world.h).
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "communicator/meeting.h"

namespace omnihvd {

// Every rank that has omnihvd must call this, at about the same time. Returns the ranks that did
// not come within patience.limit_s, ascending: as rank 0 found them, or rank 0 alone if rank 0 does
// not answer. At most kMostMissing. Throws Error if MPI fails.
std::vector<int> missing_ranks(MPI_Comm comm, const Patience& patience);
constexpr size_t kMostMissing = 100;

// Each rank's number in MPI_COMM_WORLD, or MPI_UNDEFINED.
std::vector<int> ranks_in_world(MPI_Comm comm);

// "rank 2, rank 5 (3, 7 in MPI_COMM_WORLD)"; the parentheses only if the numbers differ.
std::string names_of(const std::vector<int>& ranks, MPI_Comm comm);

}  // namespace omnihvd
