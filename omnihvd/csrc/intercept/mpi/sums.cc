// Intercepts MPI_Allreduce, MPI_Reduce_scatter and MPI_Reduce_scatter_block under two names:
// MPI_Allreduce for any MPI program (LD_PRELOAD, or loaded first), and omnihvd_MPI_Allreduce for
// Horovod, by the GOT hook.
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

int by_counts(const MpiCall& call, const void* in, void* out) {
  return PMPI_Reduce_scatter(in, out, call.counts, call.type, call.op, call.comm);
}

int by_block(const MpiCall& call, const void* in, void* out) {
  return PMPI_Reduce_scatter_block(in, out, *call.counts, call.type, call.op, call.comm);
}

// counts: one for each rank; with by_block, one for all ranks.
int reduce_scatter(const char* name, const void* in, void* out, const int* counts,
                   MPI_Datatype type, MPI_Op op, MPI_Comm comm, decltype(MpiCall::by_mpi) by_mpi,
                   Caller caller) noexcept {
  MpiCall call{name, "a reduce-scatter", in, out, 0, type, op, comm, by_mpi, counts};
  int ranks = 0;  // that get a share; 0: MPI will report the error
  if (counts == nullptr || comm == MPI_COMM_NULL || PMPI_Comm_size(comm, &ranks) != MPI_SUCCESS)
    ranks = 0;
  if (ranks == 0) call.count = -1;
  for (int rank = 0; rank < ranks && call.count >= 0; ++rank) {
    const int count = counts[by_mpi == &by_block ? 0 : rank];
    call.count = count < 0 ? -1 : call.count + count;
    if (count >= 0) call.shares.push_back(uint64_t(count));
  }
  return take_or_leave(call, caller);
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

OMNIHVD_EXPORT int MPI_Reduce_scatter(const void* in, void* out, const int counts[],
                                      MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  using namespace omnihvd;
  return reduce_scatter("MPI_Reduce_scatter", in, out, counts, type, op, comm, &by_counts,
                        Caller::program);
}

OMNIHVD_EXPORT int MPI_Reduce_scatter_block(const void* in, void* out, int count, MPI_Datatype type,
                                            MPI_Op op, MPI_Comm comm) {
  using namespace omnihvd;
  return reduce_scatter("MPI_Reduce_scatter_block", in, out, &count, type, op, comm, &by_block,
                        Caller::program);
}

OMNIHVD_EXPORT int omnihvd_MPI_Reduce_scatter(const void* in, void* out, const int counts[],
                                              MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  using namespace omnihvd;
  return reduce_scatter("MPI_Reduce_scatter", in, out, counts, type, op, comm, &by_counts,
                        Caller::horovod);
}
