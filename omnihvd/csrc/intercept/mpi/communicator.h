// omnihvd's state for an MPI communicator, stored as an attribute of it.
#pragma once

#include <mpi.h>

#include "communicator/communicator.h"
#include "intercept/mpi/exchange.h"

namespace omnihvd {

struct MpiCommunicator {
  MpiCommunicator(MPI_Comm comm, Caller caller) : exchange(comm, caller), sums(exchange.size()) {}

  MpiExchange exchange;
  Communicator sums;

  // Local. Made at the first call; ends when the communicator is freed. A duplicate of the
  // communicator has a state of its own.
  static MpiCommunicator& of(MPI_Comm comm, Caller caller);
  static MpiCommunicator* find(MPI_Comm comm);  // null: there has been no call

  // Leaves all groups. Called before MPI_Finalize ends. A program's own callbacks may sum later.
  static void leave_all();
  static bool all_left();
};

}  // namespace omnihvd
