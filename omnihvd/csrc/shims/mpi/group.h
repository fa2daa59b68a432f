// The group of the engine that belongs to a communicator, kept as an attribute of it.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/session.h"
#include "shims/mpi/hierarchy.h"
#include "ways/ways.h"

namespace omnihvd {

class MpiGroup {
 public:
  // Local; made at the first call. Ends when the communicator is freed; a duplicate of the
  // communicator has a group of its own.
  static MpiGroup& of(MPI_Comm comm);

  // Leaves all groups; before MPI_Finalize ends.
  static void leave_all();

  // Why a tensor of so many bytes is left to MPI ("disabled", "small"), or null: it is taken. The
  // same on all ranks, since rank 0's settings hold: the first call is collective, to learn them.
  // Throws Error.
  const char* refusal(uint64_t bytes);

  // Collective; the first call connects the ranks. Returns how the sum was made. Throws Error, and
  // then at each later call.
  Way allreduce(const MpiReduction& reduction);

 private:
  explicit MpiGroup(MPI_Comm comm) : comm_(comm) {}
  static int on_comm_free(MPI_Comm, int, void* group, void*);

  template <typename Work>
  void or_fail_for_good(Work work);
  void agree();
  void choose_levels();
  uint64_t stream(const MpiReduction& reduction, const void* in, void* out);

  const MPI_Comm comm_;
  std::string failure_;               // of an earlier call; empty: none
  std::optional<Settings> settings_;  // rank 0's where all must agree
  std::vector<std::string> hosts_;    // of each rank, until the levels are chosen
  std::optional<Ways> ways_;          // from then on
  std::optional<HostGrid> grid_;      // present: two levels
  std::shared_ptr<Group> group_;  // of all ranks, or of grid_->across(); from the first tensor on
};

}  // namespace omnihvd
