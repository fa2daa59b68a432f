// The engine's group of a communicator, made at its first sums over an exchange: for libraries that
// have nothing of their own for the ranks of a host.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/own_process.h"
#include "session/session.h"
#include "sums/agreement.h"
#include "sums/coded_buffer.h"
#include "sums/own_sum.h"
#include "ways/ways.h"

namespace omnihvd {

// One thread at a time. Leaves its groups when destroyed.
class AgreedGroup {
 public:
  // timeout_s: of a sum, where the settings have none; 0: none.
  explicit AgreedGroup(double timeout_s = 0) : timeout_s_(timeout_s) {}

  // Why a tensor of so many bytes is left to the original library ("disabled", "small"), or null:
  // it is taken. The same on all ranks, since rank 0's settings hold: the first call is collective,
  // to learn them. of_any_size: "small" is none. Throws Error.
  const char* refusal(Exchange& exchange, uint64_t bytes, bool of_any_size = false);

  // Collective; in place. The first call connects the ranks. Returns how the sum was made. Throws
  // Error, and then at each later call.
  Way allreduce(Exchange& exchange, Library& library, void* data, uint64_t count, DType dtype);

  // The same of float32 by a codec, whose seed is the caller's affair; never by a library.
  Way allreduce(Exchange& exchange, void* data, uint64_t count, const Codec& codec);

  // The same of tensors under codecs, marking them.
  Way allreduce(Exchange& exchange, CodedBuffer& tensors);

  // After the first of those, int32 may be the zeros of a rank that has no more data (hvd.join())
  // in such a sum. They must not go another way than the others': the engine sees the difference.
  bool int32_may_be_coded() const { return coded_sums_ > 0; }
  Way allreduce_int32(Exchange& exchange, void* data, uint64_t count);

 private:
  template <typename Work>
  void or_fail_for_good(Work work);

  Ways::SumMade sum(Exchange& exchange, void* data, uint64_t count, DType dtype,
                    const Codec& codec = {});

  const OwnProcess process_;
  const double timeout_s_;
  std::string failure_;  // of an earlier call; empty: none
  std::optional<Agreement> agreement_;
  // From the first tensor on.
  std::optional<OwnSum> own_;
  std::optional<Ways> ways_;
  uint64_t coded_sums_ = 0;
};

}  // namespace omnihvd
