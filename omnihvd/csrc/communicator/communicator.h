// The ranks that sum together: whether omnihvd makes a sum, by which algorithm, and how it is
// counted, for any backend. The interception of a backend (intercept/, python/bind_communicator.cc)
// translates: a call's arguments into a Call, the library into an Exchange and a Library.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/direct/direct_sum.h"
#include "algorithms/shared_memory/small_sum.h"
#include "algorithms/ways.h"
#include "base/error.h"
#include "base/own_process.h"
#include "base/reason.h"
#include "communicator/meeting.h"
#include "engine/list_sum.h"
#include "engine/session.h"

namespace omnihvd {

// Every call after a failed one throws this, with the message of the first failure.
struct __attribute__((visibility("default"))) FailedBefore : Error {
  using Error::Error;
};

// The library. Gloo hands each sum to a thread of its own: it makes only the first small ones of
// the ranks. torch_gloo: its caller asks leaves_first().
enum class Beside { mpi, gloo, torch_gloo };

// One thread at a time. Leaves its groups when destroyed.
class Communicator {
 public:
  explicit Communicator(int size, Beside library = Beside::mpi) : size_(size), library_(library) {}

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
  // Whether the library makes this allreduce, which was not refused or refused as small, since it
  // is one of the first (kFirstSums) or a setting says so. Counts it: all ranks must ask for the
  // same calls. Give sum() a call that `takes_small` if no more are left.
  bool leaves_first(uint64_t bytes, bool scatters = false);
  bool left_first() const { return first_sums_ > kFirstSums || first_bytes_ > kFirstBytes; }
  // Collective, for calls that are not refused. The first call connects the ranks. Counts the sum.
  void sum(const Call& call, Exchange& exchange, Library& library);
  // The same in this thread, over memory that the ranks already share (SmallSum) or connections
  // that they have (DirectSum). Returns false if neither makes it.
  bool sum_small(const Call& call);
  // Whether lists of such rows are summed as lists, on all ranks alike: else make a dense tensor
  // of their union. Several ranks of a host first sum among themselves, as lists cannot.
  bool takes_lists(DType dtype, uint64_t length) const;
  // Collective, once they have met: sums lists of blocks, by streaming. Counts the sum.
  // Returns the sum, unless it is dense; valid until the next one.
  const ListedSums& sum_lists(const ListCall& call, Exchange& exchange);

  // Called by WhileWaiting's work while a sum waits: fails the sum on all ranks.
  void interrupt(int rank, const std::string& why);

  // No later call works: this rank has failed in one, and the others need not wait for it.
  void give_up(const std::exception& why);
  // Throws FailedBefore if a call has failed. No call of any kind may follow: the ranks may be out
  // of step, and would misread each other's messages.
  void check() const {
    process_.check();
    if (!failure_.empty()) throw FailedBefore(failure_);
  }

  // While it lives, the engine can tell waiting ranks that this rank is in a call that the library
  // makes (a fallback).
  class Elsewhere {
   public:
    // call: "an allreduce"
    Elsewhere(const Communicator* communicator, const char* call, const char* library,
              uint64_t bytes, Reason reason);
    Elsewhere(const Elsewhere&) = delete;
    ~Elsewhere() {
      if (group_) group_->set_elsewhere("");
    }

   private:
    std::shared_ptr<Group> group_;
  };

 private:
  template <typename Work>
  void or_fail_for_good(Work work);
  template <typename Make>
  void counted(const Call& call, Make make);
  uint64_t least_bytes(bool scatters) const {
    // Horovod fuses other tensors in each run: one that is small alone may be part of a large sum.
    const bool any = (small_wanted_ && !scatters) || agreed_->settings.deterministic;
    return agreed_->settings.min_bytes.value_or(any ? 0 : kMinBytesBetweenHosts);
  }
  void begin(const Call& call, Exchange& exchange);
  bool is_direct(const Call& call) const {
    return !call.scatters() && !call.codec && call.bytes() <= most_direct_;
  }
  void connect_directly(const Call& call, Exchange& exchange);
  void pass(const Call& call);
  void leave_to(Library& library, const Call& call);
  Reason sum_int32(const Call& call, Exchange& exchange, Library& library, Reason reason);
  bool sum_coded(const Call& call, Exchange& exchange, Library& library);
  void check_arithmetic(const Call& call, int rank) const;
  std::optional<SumMade> own(const Call& call, Exchange& exchange, Library& library);
  Way coded(const Call& call, Exchange& exchange, Library& library);

  const OwnProcess process_;
  const int size_;
  const Beside library_;
  uint64_t first_sums_ = 0, first_bytes_ = 0;
  double timeout_s_ = 0;         // the caller's
  bool settings_bound_ = false;  // the settings have a time-out, which takes precedence
  std::string failure_;          // of an earlier call; empty: none
  std::optional<Agreement> agreed_;
  std::string met_in_;          // describes the call of the bootstrap
  bool all_on_device_ = false;  // in that call
  bool can_scatter_ = false;
  bool small_wanted_ = false;
  uint64_t most_direct_ = 0;  // bytes of a direct sum
  // Set by the first sum.
  std::unique_ptr<SmallSum> small_;    // null: the ranks share no memory
  std::unique_ptr<DirectSum> direct_;  // set by the first sum that it takes
  std::unique_ptr<Algorithm> own_;
  std::shared_ptr<Group> lists_;  // set by the first sum of lists
  ListedSums listed_;             // the last of them
  std::map<Op, Ways> ways_;
  bool codecs_used_ = false;  // a tensor under a codec has come, on any rank
  uint64_t coded_sums_ = 0;
};

}  // namespace omnihvd
