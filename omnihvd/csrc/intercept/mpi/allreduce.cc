// Intercepts MPI_Allreduce under two names: MPI_Allreduce for any MPI program (LD_PRELOAD, or
// loaded first), and omnihvd_MPI_Allreduce for Horovod, by the GOT hook.
#include <mpi.h>

#include <climits>

#include "engine/stats.h"
#include "intercept/mpi/call.h"

namespace omnihvd {
namespace {

int by_mpi(const MpiCall& call, const void* in, void* out) {
  return PMPI_Allreduce(in, out, static_cast<int>(call.count), call.type, call.op, call.comm);
}

int allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
              Caller caller) noexcept {
  return take_or_leave({"MPI_Allreduce", "an allreduce", in, out, count, type, op, comm, &by_mpi},
                       caller);
}

}  // namespace
}  // namespace omnihvd

OMNIHVD_EXPORT int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                                 MPI_Comm comm) {
  return omnihvd::allreduce(in, out, count, type, op, comm, omnihvd::Caller::program);
}

OMNIHVD_EXPORT int omnihvd_MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type,
                                         MPI_Op op, MPI_Comm comm) {
  return omnihvd::allreduce(in, out, count, type, op, comm, omnihvd::Caller::horovod);
}

#if MPI_VERSION >= 4
OMNIHVD_EXPORT int MPI_Allreduce_c(const void* in, void* out, MPI_Count count, MPI_Datatype type,
                                   MPI_Op op, MPI_Comm comm) {
  if (count <= INT_MAX)
    return omnihvd::allreduce(in, out, static_cast<int>(count), type, op, comm,
                              omnihvd::Caller::program);
  omnihvd::count_pass(omnihvd::Reason::large, omnihvd::bytes_of(count, type));
  return PMPI_Allreduce_c(in, out, count, type, op, comm);
}
#endif
