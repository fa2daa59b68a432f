// The ranks that sum together: whether omnihvd makes a sum, by which algorithm, and how it is
// counted, for any backend. The interception of a backend (intercept/, python/bind_communicator.cc)
// translates: a call's arguments into a Call, the library into an Exchange and a Library.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/library.h"
#include "algorithms/own_sum.h"
#include "algorithms/ways.h"
#include "base/error.h"
#include "base/own_process.h"
#include "base/reason.h"
#include "communicator/meeting.h"
#include "engine/session.h"

namespace omnihvd {

// An allreduce that sums. in == out: in place. Or a reduce-scatter that sums: out is this rank's
// share, and may overlap `in`.
struct Call {
  const void* in;
  void* out;
  uint64_t count;
  DType dtype;
  Codec codec = {};           // for float32, from a caller that knows codecs
  bool may_be_coded = false;  // int32 that may carry codec data (coded_buffer.h)
  bool on_device = false;     // the buffers are not in host memory: Communicator::meet
  // For a reduce-scatter: the elements of each rank, `count` in all.
  const std::vector<uint64_t>* shares = nullptr;

  uint64_t bytes() const { return count * size_of(dtype); }
  bool any_size() const { return bool(codec) || may_be_coded; }
};

// Every call after a failed one throws this, with the message of the first failure.
struct __attribute__((visibility("default"))) FailedBefore : Error {
  using Error::Error;
};

// One thread at a time. Leaves its groups when destroyed.
class Communicator {
 public:
  explicit Communicator(int size) : size_(size) {}

  // Does everything: bootstraps, and sums or returns the fallback reason, which is the same on all
  // ranks. Throws Error.
  Reason take(const Call& call, Exchange& exchange, Library& library);

  // The parts of take(). Collective, once: the ranks learn each other's settings, and check that
  // all are in the same call, if there is one. Throws Error, and then so do each later call and
  // sum().
  void meet(Exchange& exchange, const Call* first = nullptr);
  bool met() const { return agreed_.has_value(); }
  double timeout_s() const { return agreed_ ? agreed_->settings.timeout_s : 0; }
  // Sets the time-out of sums from now on, if the settings have none; 0: none. Local to this rank.
  void set_timeout(double seconds);
  // Pure. After bootstrap the answer is final. Exception: int32 buffers that may carry codec data
  // are accepted below the minimum size. scatters: for a reduce-scatter.
  Reason refusal(uint64_t bytes, bool any_size = false, bool scatters = false) const;
  // Collective, for calls that are not refused. The first call connects the ranks. Counts the sum.
  void sum(const Call& call, Exchange& exchange, Library& library);

  // Called by WhileWaiting's work while a sum waits: fails the sum on all ranks.
  void interrupt(int rank, const std::string& why);

  // Throws FailedBefore if a call has failed. No call of any kind may follow: the ranks may be out
  // of step, and would misread each other's messages.
  void check() const;

  // While it lives, the engine can tell waiting ranks that this rank is in a call that the library
  // makes (a fallback).
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
  bool settings_bound_ = false;  // the settings have a time-out, which takes precedence
  std::string failure_;          // of an earlier call; empty: none
  std::optional<Agreement> agreed_;
  std::string met_in_;          // describes the call of the bootstrap
  bool all_on_device_ = false;  // in that call
  bool can_scatter_ = false;
  // Set by the first sum.
  std::optional<OwnSum> own_;
  std::optional<Ways> ways_, scatter_ways_;
  bool codecs_used_ = false;  // a tensor under a codec has come, on any rank
  uint64_t coded_sums_ = 0;
};

}  // namespace omnihvd
