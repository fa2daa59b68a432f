// The engine's group of a communicator, made at its first sums over an exchange: for libraries that
// have nothing of their own for the ranks of a host.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "session/session.h"
#include "shims/agreement.h"
#include "shims/one_host.h"
#include "shims/two_levels.h"
#include "ways/ways.h"

namespace omnihvd {

// One thread at a time. Leaves its groups when destroyed.
class AgreedGroup {
 public:
  // timeout_s: of a sum, where the settings have none; 0: none.
  explicit AgreedGroup(double timeout_s = 0) : timeout_s_(timeout_s) {}

  // Why a tensor of so many bytes is left to the original library ("disabled", "small"), or null:
  // it is taken. The same on all ranks, since rank 0's settings hold: the first call is collective,
  // to learn them. Throws Error.
  const char* refusal(Exchange& exchange, uint64_t bytes);

  // Collective; in place. The first call connects the ranks. Returns how the sum was made. Throws
  // Error, and then at each later call.
  Way allreduce(Exchange& exchange, Library& library, void* data, uint64_t count, DType dtype);

 private:
  template <typename Work>
  void or_fail_for_good(Work work);

  Ways::OwnSum sum(Exchange& exchange, void* data, uint64_t count, DType dtype);

  const double timeout_s_;
  std::string failure_;  // of an earlier call; empty: none
  std::optional<Agreement> agreement_;
  // From the first tensor on, one of these.
  std::unique_ptr<SharedSum> shared_;
  std::shared_ptr<Group> group_;  // of all ranks
  std::optional<TwoLevels> levels_;
  std::optional<Ways> ways_;
};

}  // namespace omnihvd
