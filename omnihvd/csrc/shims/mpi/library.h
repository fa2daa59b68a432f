// MPI as the library that sums, for the ways (ways/library.h).
#pragma once

#include <mpi.h>

#include "shims/mpi/reduction.h"
#include "ways/library.h"

namespace omnihvd {

class MpiLibrary : public Library {
 public:
  // For one call: its communicator, type and operation.
  MpiLibrary(MPI_Comm comm, const MpiReduction& reduction);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum(const void* in, void* out, uint64_t count) override;
  bool has_two_step() const override { return true; }
  void sum_two_step(const void* in, void* out, uint64_t count) override;
  void unite(uint8_t* bits, size_t bytes) override;
  void tell(void* data, size_t bytes) override;

 private:
  const MPI_Comm comm_;
  const MPI_Datatype type_;
  const MPI_Op op_;
  const size_t element_;
  int rank_ = 0, size_ = 0;
};

}  // namespace omnihvd
