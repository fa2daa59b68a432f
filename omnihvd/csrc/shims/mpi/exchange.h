// How the ranks of a communicator find each other: an allgather that does not wait for ever.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "session/session.h"
#include "sums/meeting.h"

namespace omnihvd {

// Throws Error naming `what`, unless the code is MPI_SUCCESS.
void check_mpi(int code, const char* what);

// Horovod's ranks have agreed on a sum before they call, and so come together; those of other
// programs come when they like.
enum class Caller { horovod, program };

// Runs on the communicator itself: the exchange takes place inside an MPI_Allreduce on it, where
// MPI allows no other thread to begin a collective. Warns, again and again, that other ranks have
// not come, and fails at the limit.
class MpiExchange : public Exchange {
 public:
  MpiExchange(MPI_Comm comm, Caller caller);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& mine) override;
  // The first time it returns when all ranks are known to run omnihvd. Throws Error.
  void wait_as(const Settings& settings) override;
  void set_patience(const Patience& patience) { patience_ = patience; }

  // That ranks did not come when Horovod summed on some communicator: who; or empty. They may wait
  // in MPI for ever.
  static const std::string& left_behind();

 private:
  void call_the_roll(const Settings& settings) const;
  // Throws Error with the ranks of whom there is nothing yet; `missing` returns them.
  void wait(MPI_Request request, const std::function<std::vector<int>()>& missing) const;

  const MPI_Comm comm_;
  const Caller caller_;
  bool all_are_here_ = false;
  Patience patience_;
  int rank_ = 0, size_ = 0;
};

}  // namespace omnihvd
