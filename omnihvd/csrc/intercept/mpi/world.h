// Which ranks of MPI_COMM_WORLD have preloaded the library, known from MPI_Init on if this rank
// has. Then the first allreduce on a communicator need not find out, and may wait for a late rank
// as long as MPI would.
#pragma once

#include <mpi.h>

#include <optional>
#include <vector>

#include "engine/settings.h"

namespace omnihvd {

// The communicator's ranks that run without omnihvd; nullopt: unknown for some of its ranks. The
// same on all ranks that run with omnihvd.
std::optional<std::vector<int>> known_to_be_without(MPI_Comm comm);

// Sets the rank and level of this process's log. Returns its settings. Wrong settings are replaced
// by defaults; the error is reported when the ranks agree on settings.
Settings set_up_log();

}  // namespace omnihvd
