/* Preloaded: counts the sums of ranks that MPI makes, and what omnihvd exchanges over MPI. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>

int sums = 0, exchanges = 0;

/* Horovod calls MPI_ names, omnihvd PMPI_ names. Open MPI's own names are aliases, so no call
   counts twice. Horovod's negotiation depends on time, so MPI_ names other than sums do not count.
 */
#define NEXT(name)               \
  static __typeof__(&name) next; \
  if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, #name)

int PMPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm) {
  NEXT(PMPI_Allreduce);
  if (op == MPI_SUM) ++sums;
  return next(in, out, count, type, op, comm);
}

int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  return PMPI_Allreduce(in, out, count, type, op, comm);
}

int PMPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  NEXT(PMPI_Bcast);
  ++exchanges;
  return next(data, count, type, root, comm);
}

int PMPI_Iallgather(const void* in, int count, MPI_Datatype type, void* out, int out_count,
                    MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  NEXT(PMPI_Iallgather);
  ++exchanges;
  return next(in, count, type, out, out_count, out_type, comm, request);
}

int PMPI_Iallgatherv(const void* in, int count, MPI_Datatype type, void* out, const int counts[],
                     const int offsets[], MPI_Datatype out_type, MPI_Comm comm,
                     MPI_Request* request) {
  NEXT(PMPI_Iallgatherv);
  ++exchanges;
  return next(in, count, type, out, counts, offsets, out_type, comm, request);
}
