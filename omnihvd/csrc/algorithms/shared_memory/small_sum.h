// Small sums of ranks that share a host's memory, in the caller's thread: small_steps.h says how.
// Nothing looks for zeros.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/call.h"
#include "algorithms/shared_memory/peers.h"
#include "algorithms/shared_memory/segment.h"
#include "algorithms/shared_memory/small_memory.h"
#include "base/own_process.h"
#include "engine/session.h"
#include "engine/settings.h"

namespace omnihvd {

// One thread at a time; all ranks make the same calls in the same order.
class SmallSum final : private SmallMemory {
 public:
  // Whether the ranks of a job make small sums, if their memory allows. Pure, the same on all
  // ranks.
  static bool wanted(const Settings& agreed, const std::vector<std::string>& hosts);
  // Collective, where wanted. Null, on all ranks alike, if they cannot share memory. Throws Error
  // if the exchange fails.
  static std::unique_ptr<SmallSum> create(Exchange& exchange, const Settings& agreed,
                                          const std::string& host);
  // Ranks that wait for this one see that it has left.
  ~SmallSum() override;

  // Pure, the same on all ranks.
  bool takes(const Call& call) const {
    return !call.scatters() && !call.codec && call.bytes() <= most_bytes_;
  }
  // Collective. Throws Error if a rank has failed, ended, makes another call, or is later than
  // OMNIHVD_TIMEOUT; `out` is then undefined, and each later call throws at once.
  void allreduce(const Call& call);
  // For each sum that it does not make, so that the ranks' calls keep the same numbers. Throws
  // Error if another rank makes a small sum in this call.
  void pass(const Call& call);

  void set_timeout(double seconds) { peers_.set_timeout(seconds); }
  void abort(const std::string& why) noexcept { peers_.abort(why); }

 private:
  struct Control;  // what the ranks have in common

  SmallSum(std::unique_ptr<Segment> segment, size_t most_bytes, Exchange& exchange,
           const Settings& agreed, const std::string& host, bool core_each);

  void await(Stamp stamp) override;
  void differs(int rank, SmallCall theirs) override;

  const OwnProcess process_;
  const std::unique_ptr<Segment> segment_;
  Peers peers_;
  const std::chrono::microseconds spin_;
  SmallCall now_;  // the call under way
};

}  // namespace omnihvd
