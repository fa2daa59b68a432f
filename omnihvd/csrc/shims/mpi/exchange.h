// How the ranks of a communicator find each other: an allgather that does not wait for ever.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "session/session.h"
#include "shims/mpi/waiting.h"

namespace omnihvd {

// Throws Error naming `what`, unless the code is MPI_SUCCESS.
void check_mpi(int code, const char* what);

// Runs on the communicator itself: the exchange takes place inside an MPI_Allreduce on it, where
// MPI allows no other thread to begin a collective. All its ranks must be known to run omnihvd.
class MpiExchange : public Exchange {
 public:
  // Warns, again and again, that other ranks have not come, and fails at the limit.
  MpiExchange(MPI_Comm comm, const Patience& patience);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& mine) override;

 private:
  // Throws Error with the ranks of whom there is nothing yet; `missing` returns them.
  void wait(MPI_Request request, const std::function<std::vector<int>()>& missing) const;

  const MPI_Comm comm_;
  const Patience patience_;
  int rank_ = 0, size_ = 0;
};

}  // namespace omnihvd
