// Allreduce in two levels, for several hosts with the same number of ranks on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter by MPI, in shared memory; local index i has part i's sum
//   2. between the hosts: the engine sums part i over the H ranks with local index i
//   3. inside each host: allgather by MPI of the L parts
// A host then streams the blocks that are non-zero on any of its ranks once, not once a rank.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "protocol/dtype.h"

namespace omnihvd {

// The arguments of an MPI_Allreduce that the engine takes.
struct MpiReduction {
  const void* in;  // or MPI_IN_PLACE
  void* out;
  int count;
  MPI_Datatype type;
  MPI_Op op;
  DType dtype;
  std::string codecs = {};  // of the tensors that are its int32; empty: just int32
};

class HostGrid {
 public:
  // Collective; hosts are those of the ranks, the same on all ranks, and form a grid (see
  // host_grid.h). Throws Error.
  HostGrid(MPI_Comm comm, const std::vector<std::string>& hosts);
  HostGrid(const HostGrid&) = delete;

  // The communicators are freed by this, not by the destructor: MPI may be gone by then.
  void free();

  MPI_Comm across() const { return across_; }  // the ranks with this rank's local index
  uint32_t index() const { return uint32_t(local_index_); }

  // Collective among the ranks of the host. Throws Error on all of them unless all have the same.
  void check_same(const Codec& codec) const;

  // Collective. stream(in, out, count) is step 2: it writes the sum over across() of the ranks'
  // `in`; in and out do not overlap, or are the same. It may throw Error: then all ranks of the
  // host throw one. It returns how many blocks were non-zero on any rank, and allreduce() the sum
  // of that over the parts. Parts are multiples of `block_size`; it is not called for an empty one.
  using Stream = std::function<uint64_t(const void* in, void* out, uint64_t count)>;
  uint64_t allreduce(const MpiReduction& reduction, uint32_t block_size,
                     const Stream& stream) const;

 private:
  MPI_Comm host_ = MPI_COMM_NULL, across_ = MPI_COMM_NULL;
  int local_size_ = 0, local_index_ = 0;
};

}  // namespace omnihvd
