/* In the place of a rank's MPI_Allreduce: ends the process when it is about to sum. */
#include <mpi.h>
#include <signal.h>

int die_at_sum(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  if (op == MPI_SUM) raise(SIGKILL);
  return PMPI_Allreduce(in, out, count, type, op, comm);
}
