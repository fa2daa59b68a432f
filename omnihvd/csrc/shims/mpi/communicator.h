// What belongs to an MPI communicator: kept as an attribute of it.
#pragma once

#include <mpi.h>

#include "shims/mpi/exchange.h"
#include "sums/communicator.h"

namespace omnihvd {

struct MpiCommunicator {
  MpiCommunicator(MPI_Comm comm, Caller caller) : exchange(comm, caller), sums(exchange.size()) {}

  MpiExchange exchange;
  Communicator sums;

  // Local; made at the first call. Ends when the communicator is freed; a duplicate of the
  // communicator has one of its own.
  static MpiCommunicator& of(MPI_Comm comm, Caller caller);
  static MpiCommunicator* find(MPI_Comm comm);  // null: there has been no call

  // Leaves all groups; before MPI_Finalize ends.
  static void leave_all();
};

}  // namespace omnihvd
