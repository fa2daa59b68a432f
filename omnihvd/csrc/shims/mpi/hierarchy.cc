#include "shims/mpi/hierarchy.h"

#include <algorithm>

#include "base/error.h"
#include "shims/mpi/exchange.h"

namespace omnihvd {

HostGrid::HostGrid(MPI_Comm comm, const std::vector<std::string>& hosts) {
  int rank = 0;
  check_mpi(PMPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  const auto first = std::find(hosts.begin(), hosts.end(), hosts[rank]);
  const int host = static_cast<int>(first - hosts.begin());
  check_mpi(PMPI_Comm_split(comm, host, rank, &host_), "MPI_Comm_split");
  check_mpi(PMPI_Comm_rank(host_, &local_index_), "MPI_Comm_rank");
  check_mpi(PMPI_Comm_size(host_, &local_size_), "MPI_Comm_size");
  check_mpi(PMPI_Comm_split(comm, local_index_, rank, &across_), "MPI_Comm_split");
}

void HostGrid::free() {
  PMPI_Comm_free(&host_);
  PMPI_Comm_free(&across_);
}

void HostGrid::check_same(const Codec& codec) const {
  const uint64_t mine = uint64_t(codec.kind) << 40 | uint64_t(codec.bits) << 32 | codec.seed;
  uint64_t largest[2] = {mine, ~mine};  // and, inverted, the smallest
  check_mpi(PMPI_Allreduce(MPI_IN_PLACE, largest, 2, MPI_UINT64_T, MPI_MAX, host_),
            "MPI_Allreduce");
  if (largest[0] == mine && largest[1] == ~mine) return;
  throw Error("the ranks of this host disagree about an allreduce: this one sums by " +
              name_of(codec) + ", another by another codec, or other tensors, or of another step");
}

uint64_t HostGrid::allreduce(const MpiReduction& r, uint32_t block_size,
                             const Stream& stream) const {
  // Parts never grow with the index, so that part i > 0 lies behind the first counts[i] elements,
  // where the reduce-scatter leaves its sum.
  const int blocks = (r.count - 1) / static_cast<int>(block_size) + 1;
  std::vector<int> counts(local_size_), offsets(local_size_);
  for (int i = 0, begin = 0; i < local_size_; ++i) {
    const int part_blocks = blocks / local_size_ + (i < blocks % local_size_);
    const int64_t most = static_cast<int64_t>(part_blocks) * block_size;
    offsets[i] = begin;
    counts[i] = static_cast<int>(std::min<int64_t>(most, r.count - begin));
    begin += counts[i];
  }
  check_mpi(PMPI_Reduce_scatter(r.in, r.out, counts.data(), r.type, r.op, host_),
            "MPI_Reduce_scatter inside the host");

  std::string failure;
  uint64_t told[2] = {0, 0};  // failures, blocks
  if (const int count = counts[local_index_]) {
    auto* const part = static_cast<char*>(r.out) + offsets[local_index_] * size_of(r.dtype);
    try {
      told[1] = stream(r.out, part, count);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  // Nobody may wait in the allgather for a rank that failed.
  told[0] = !failure.empty();
  check_mpi(PMPI_Allreduce(MPI_IN_PLACE, told, 2, MPI_UINT64_T, MPI_SUM, host_), "MPI_Allreduce");
  if (!failure.empty()) throw Error(failure);
  if (told[0] > 0)
    throw Error("another rank of this host failed to reduce its part: see its message");

  check_mpi(PMPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, r.out, counts.data(),
                            offsets.data(), r.type, host_),
            "MPI_Allgatherv inside the host");
  return told[1];
}

}  // namespace omnihvd
