#include "shims/mpi/library.h"

#include <cstring>
#include <vector>

#include "shims/mpi/exchange.h"

namespace omnihvd {

void MpiLibrary::sum(const void* in, void* out, uint64_t count) {
  check_mpi(PMPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, static_cast<int>(count), type_, op_,
                           comm_),
            "MPI_Allreduce");
}

void MpiLibrary::sum_two_step(const void* in, void* out, uint64_t count) {
  // Parts never grow with the rank, so that part i > 0 lies behind the first counts[i] elements,
  // where the reduce-scatter in place leaves its sum.
  std::vector<int> counts(size_), offsets(size_);
  for (int i = 0, begin = 0; i < size_; ++i) {
    offsets[i] = begin;
    counts[i] = static_cast<int>(count / size_ + (static_cast<uint64_t>(i) < count % size_));
    begin += counts[i];
  }
  auto* const part = static_cast<char*>(out) + offsets[rank_] * element_;
  if (in == out) {
    check_mpi(PMPI_Reduce_scatter(MPI_IN_PLACE, out, counts.data(), type_, op_, comm_),
              "MPI_Reduce_scatter");
    if (rank_ > 0) std::memcpy(part, out, counts[rank_] * element_);
  } else {
    check_mpi(PMPI_Reduce_scatter(in, part, counts.data(), type_, op_, comm_),
              "MPI_Reduce_scatter");
  }
  check_mpi(PMPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, counts.data(), offsets.data(),
                            type_, comm_),
            "MPI_Allgatherv");
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
