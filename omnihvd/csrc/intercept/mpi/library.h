// MPI as the library for the algorithms (algorithms/library.h).
#pragma once

#include <mpi.h>

#include "algorithms/library.h"
#include "intercept/mpi/call.h"

namespace omnihvd {

// For one allreduce.
class MpiLibrary : public Library {
 public:
  // Both must outlive this object.
  MpiLibrary(const MpiExchange& exchange, const MpiCall& call) : exchange_(exchange), call_(call) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }

  void run(const void* in, void* out, uint64_t count) override {
    check_mpi(PMPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, static_cast<int>(count),
                             call_.type, call_.op, call_.comm),
              "MPI_Allreduce");
  }

  void unite(uint8_t* bits, size_t bytes) override {
    check_mpi(PMPI_Allreduce(MPI_IN_PLACE, bits, static_cast<int>(bytes), MPI_UINT8_T, MPI_BOR,
                             call_.comm),
              "MPI_Allreduce of the blocks' bitmap");
  }

  void tell(void* data, size_t bytes) override {
    check_mpi(PMPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, call_.comm), "MPI_Bcast");
  }

 protected:
  const MpiExchange& exchange_;
  const MpiCall& call_;
};

// For one reduce-scatter, which is always made whole.
class MpiScatters : public MpiLibrary {
 public:
  using MpiLibrary::MpiLibrary;
  void run(const void* in, void* out, uint64_t) override {
    check_mpi(call_.by_mpi(call_, in == out ? MPI_IN_PLACE : in, out), call_.name);
  }
};

}  // namespace omnihvd
