// The group of the engine that belongs to a communicator, kept as an attribute of it.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/own_process.h"
#include "session/session.h"
#include "shims/mpi/reduction.h"
#include "shims/mpi/waiting.h"
#include "sums/own_sum.h"
#include "ways/ways.h"

namespace omnihvd {

// Horovod's ranks have agreed on a sum before they call, and so come together; those of other
// programs come when they like.
enum class Caller { horovod, program };

class MpiGroup {
 public:
  // Local; made at the first call. Ends when the communicator is freed; a duplicate of the
  // communicator has a group of its own.
  static MpiGroup& of(MPI_Comm comm, Caller caller);
  static MpiGroup* find(MPI_Comm comm);  // null: there has been no call

  // Leaves all groups; before MPI_Finalize ends.
  static void leave_all();

  // That ranks did not come when Horovod summed on some communicator: what was said of it; or
  // empty. They may wait in MPI for ever.
  static const std::string& left_behind();

  // OMNIHVD_TIMEOUT, once a sum has failed; 0: none has, or there is none.
  static double limit_after_failure();

  // Throws Error if a call has failed: then none must follow, of any kind. The ranks may be out of
  // step, and what they say to each other in MPI would be taken for something else.
  void check() const;

  // Why a sum of so many bytes is left to MPI ("disabled", "small"), or null: it is taken. The same
  // on all ranks, since rank 0's settings hold: the first call is collective, to learn them. Throws
  // Error.
  // Of int32 that are, or may be, tensors under codecs, "small" is none.
  const char* refusal(const MpiReduction& reduction, uint64_t bytes);

  // Collective; the first call connects the ranks. Returns how the sum was made. Throws Error, and
  // then at each later call.
  Way allreduce(const MpiReduction& reduction);

  // While it lives the engine knows, should the others wait, that this rank is in a call that is
  // left to MPI.
  class Elsewhere {
   public:
    Elsewhere(MPI_Comm comm, uint64_t bytes, const char* reason);
    Elsewhere(const Elsewhere&) = delete;
    ~Elsewhere();

   private:
    std::shared_ptr<Group> group_;
  };

 private:
  MpiGroup(MPI_Comm comm, Caller caller) : comm_(comm), caller_(caller) {}
  static int keyval();
  static int on_comm_free(MPI_Comm, int, void* group, void*);

  template <typename Work>
  void or_fail_for_good(Work work);
  void call_the_roll(const Settings& settings) const;
  void agree(const MpiReduction& reduction);
  void check_same(const std::vector<std::string>& sums) const;  // of each rank
  Patience patience(const Settings& settings) const;
  Ways::SumMade sum(const MpiReduction& reduction, const void* in, void* out,
                    const Codec& codec = {});
  Way sum_coded(const MpiReduction& reduction);
  // As AgreedGroup::int32_may_be_coded().
  bool may_be_coded(const MpiReduction& r) const {
    return r.dtype == DType::i32 && coded_sums_ > 0;
  }

  const OwnProcess process_;
  const MPI_Comm comm_;
  const Caller caller_;
  std::string failure_;               // of an earlier call; empty: none
  std::optional<Settings> settings_;  // rank 0's where all must agree
  std::vector<std::string> hosts_;    // of each rank, until the first tensor
  std::optional<Ways> ways_;          // from then on
  uint64_t coded_sums_ = 0;
  bool agreed_in_this_call_ = false;  // so that all ranks are known to be in it
  std::optional<OwnSum> own_;         // from the first tensor on
};

}  // namespace omnihvd
