#include "intercept/mpi/library.h"

#include "intercept/mpi/exchange.h"

namespace omnihvd {

void MpiLibrary::run(const void* in, void* out, uint64_t count) {
  check_mpi(PMPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, static_cast<int>(count), type_, op_,
                           comm_),
            "MPI_Allreduce");
}

void MpiLibrary::unite(uint8_t* bits, size_t bytes) {
  check_mpi(
      PMPI_Allreduce(MPI_IN_PLACE, bits, static_cast<int>(bytes), MPI_UINT8_T, MPI_BOR, comm_),
      "MPI_Allreduce of the blocks' bitmap");
}

void MpiLibrary::tell(void* data, size_t bytes) {
  check_mpi(PMPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, comm_), "MPI_Bcast");
}

}  // namespace omnihvd
