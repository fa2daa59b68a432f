// Out-of-band allgather for the bootstrap of a communicator, with a time-out.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "communicator/meeting.h"
#include "engine/session.h"

namespace omnihvd {

// Throws Error naming `what`, unless the code is MPI_SUCCESS.
void check_mpi(int code, const char* what);

// Horovod's ranks agree on a sum before they call, and so come together; other programs' ranks may
// come at any time.
enum class Caller { horovod, program };

// Runs on the communicator itself: the exchange takes place inside an MPI_Allreduce on it, when MPI
// allows no other thread to begin a collective. Warns repeatedly that other ranks have not come,
// and fails after the time-out.
class MpiExchange : public Exchange {
 public:
  MpiExchange(MPI_Comm comm, Caller caller);
  std::vector<std::string> allgather(const std::string& mine) override;
  // The first call returns once all ranks are known to run omnihvd. Throws Error.
  void wait_as(const Settings& settings) override;
  void set_patience(const Patience& patience) { patience_ = patience; }

  // Names the ranks that did not come when Horovod summed on some communicator; empty: none. They
  // may wait in MPI for ever.
  static const std::string& left_behind();

 private:
  void call_the_roll(const Settings& settings) const;
  // Throws Error that names the ranks from which nothing has come; `missing` returns them.
  void wait(MPI_Request request, const std::function<std::vector<int>()>& missing) const;

  const MPI_Comm comm_;
  const Caller caller_;
  bool all_are_here_ = false;
  Patience patience_;
};

}  // namespace omnihvd
