// What is known of MPI_COMM_WORLD's ranks from MPI_Init on, where the shim is preloaded: who has it
// as well. Then the first allreduce on a communicator need not find out, and may wait for a rank
// that is late as long as MPI would.
#pragma once

#include <mpi.h>

#include <optional>
#include <vector>

#include "session/settings.h"

namespace omnihvd {

// The communicator's ranks that run without omnihvd; nothing: that is not known of all its ranks.
// The same on all ranks that run with it.
std::optional<std::vector<int>> known_to_be_without(MPI_Comm comm);

// Rank and level of what this process logs. Returns its settings; defaults where they are wrong,
// which is reported where the ranks agree on them.
Settings set_up_log();

}  // namespace omnihvd
