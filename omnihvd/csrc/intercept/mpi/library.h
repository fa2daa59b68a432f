// MPI as the library for the algorithms (algorithms/library.h).
#pragma once

#include <mpi.h>

#include "algorithms/library.h"
#include "intercept/mpi/exchange.h"

namespace omnihvd {

class MpiLibrary : public Library {
 public:
  // For one call, with its communicator, type and operation.
  MpiLibrary(const MpiExchange& exchange, MPI_Comm comm, MPI_Datatype type, MPI_Op op)
      : comm_(comm), type_(type), op_(op), rank_(exchange.rank()), size_(exchange.size()) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void run(const void* in, void* out, uint64_t count) override;
  void unite(uint8_t* bits, size_t bytes) override;
  void tell(void* data, size_t bytes) override;

 private:
  const MPI_Comm comm_;
  const MPI_Datatype type_;
  const MPI_Op op_;
  const int rank_, size_;
};

}  // namespace omnihvd
