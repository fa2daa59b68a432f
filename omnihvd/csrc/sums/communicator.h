// The ranks that sum together: whether a sum is taken, how it is made, and how it is counted, for
// whatever library the ranks belong to. A carrier (shims/, python/bind_communicator.cc) translates:
// a call's arguments into a Call, the library into an Exchange and a Library.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/own_process.h"
#include "base/reason.h"
#include "session/session.h"
#include "sums/meeting.h"
#include "sums/own_sum.h"
#include "ways/library.h"
#include "ways/ways.h"

namespace omnihvd {

// An allreduce that is a sum. in == out: in place. Or a reduce-scatter that is one: out is this
// rank's share, and may overlap `in`.
struct Call {
  const void* in;
  void* out;
  uint64_t count;
  DType dtype;
  Codec codec = {};           // of float32, from a caller that knows codecs
  bool may_be_coded = false;  // int32 as which tensors under codecs may travel (coded_buffer.h)
  bool on_device = false;     // the buffers are not in host memory: see Communicator::meet
  // Of a reduce-scatter: the elements of each rank, together `count`.
  const std::vector<uint64_t>* shares = nullptr;

  uint64_t bytes() const { return count * size_of(dtype); }
  bool any_size() const { return bool(codec) || may_be_coded; }
};

// What every call is told after one that has failed; that one's words.
struct __attribute__((visibility("default"))) FailedBefore : Error {
  using Error::Error;
};

// One thread at a time. Leaves its groups when destroyed.
class Communicator {
 public:
  explicit Communicator(int size) : size_(size) {}

  // All of it: meets, and sums or says why the call is left to the library; the same on all ranks.
  // Throws Error.
  Reason take(const Call& call, Exchange& exchange, Library& library);

  // Its parts. Collective, once: the ranks learn each other's settings, and whether all are in the
  // same call, if there is one. Throws Error, and then at each later call, as does sum().
  void meet(Exchange& exchange, const Call* first = nullptr);
  bool met() const { return agreed_.has_value(); }
  double timeout_s() const { return agreed_ ? agreed_->settings.timeout_s : 0; }
  // Of the sums from now on, where the settings have no time-out; 0: none. On each rank its own.
  void set_timeout(double seconds);
  // Pure. Once they have met it is the last word, but that int32 which may be coded may be small.
  // scatters: of a reduce-scatter.
  Reason refusal(uint64_t bytes, bool any_size = false, bool scatters = false) const;
  // Collective; of calls that are not refused. The first connects the ranks. Counts it.
  void sum(const Call& call, Exchange& exchange, Library& library);

  // From within WhileWaiting's work, in a sum that waits: it fails, on all ranks.
  void interrupt(int rank, const std::string& why);

  // Throws FailedBefore if a call has failed: then none must follow, of any kind. The ranks may be
  // out of step, and what they say to each other would be taken for something else.
  void check() const;

  // While it lives the engine knows, should the others wait, that this rank is in a call that is
  // left to the library.
  class Elsewhere {
   public:
    // call: "an allreduce"
    Elsewhere(const Communicator* communicator, const char* call, const char* library,
              uint64_t bytes, Reason reason);
    Elsewhere(const Elsewhere&) = delete;
    ~Elsewhere();

   private:
    std::shared_ptr<Group> group_;
  };

 private:
  template <typename Work>
  void or_fail_for_good(Work work);
  template <typename Make>
  void counted(const Call& call, Make make);
  Reason sum_int32(const Call& call, Exchange& exchange, Library& library, Reason reason);
  bool sum_coded(const Call& call, Exchange& exchange);
  void check_arithmetic(const Call& call, int rank) const;
  Ways::SumMade own(const Call& call, Exchange& exchange);

  const OwnProcess process_;
  const int size_;
  double timeout_s_ = 0;         // the caller's
  bool settings_bound_ = false;  // they have a time-out, which holds instead
  std::string failure_;          // of an earlier call; empty: none
  std::optional<Agreement> agreed_;
  std::string met_in_;          // the call in which they met, in words
  bool all_on_device_ = false;  // then
  bool can_scatter_ = false;
  // From the first sum on.
  std::optional<OwnSum> own_;
  std::optional<Ways> ways_, scatter_ways_;
  bool codecs_used_ = false;  // a tensor under a codec has come, on any rank
  uint64_t coded_sums_ = 0;
};

}  // namespace omnihvd
