// How the ranks of a communicator find each other: an allgather that does not wait for ever.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "session/session.h"

namespace omnihvd {

// Throws Error naming `what`, unless the code is MPI_SUCCESS.
void check_mpi(int code, const char* what);

// Runs on the communicator itself: the exchange takes place inside an MPI_Allreduce on it, where
// MPI allows no other thread to begin a collective.
class MpiExchange : public Exchange {
 public:
  // Warns each patience.stall_warning_s that the other ranks have not come, and fails after
  // patience.timeout_s (0: never, both).
  MpiExchange(MPI_Comm comm, const Settings& patience);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& mine) override;

 private:
  void wait(MPI_Request request) const;

  const MPI_Comm comm_;
  const double stall_warning_s_, timeout_s_;
  int rank_ = 0, size_ = 0;
};

}  // namespace omnihvd
