// Sums through an aggregator in the data path (OMNIHVD_INLINE, inline/client.h) instead of streams.
//
// Every rank is a worker of it. It adds integers and knows nothing of the job, so a group of the
// engine stands beside it: it sums what such an aggregator does not, and with each sum that goes
// through the aggregator the ranks tell each other by the engine that they have begun it. So who is
// late, has ended or sums something else is found, named and bounded as for all streamed sums, and
// of what one rank fails all fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "inline/client.h"
#include "session/session.h"

namespace omnihvd {

// One thread at a time.
class InlineSum {
 public:
  // Collective: joins the aggregator, and makes the group. Null, on all ranks alike, where it takes
  // no such job, of which rank 0 says why. Throws Error, on all ranks.
  static std::unique_ptr<InlineSum> create(Exchange& exchange, const Settings& agreed,
                                           const std::vector<std::string>& hosts);

  static bool takes(DType dtype, const Codec& codec) { return inline_takes(dtype) && !codec; }
  // Collective; of what it takes. in == out: in place. Returns how many blocks were non-zero on any
  // rank. Throws Error, on all ranks, and the object must then be destroyed.
  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype);
  const std::shared_ptr<Group>& group() const { return group_; }
  // Of the sums from now on; 0: none.
  void set_timeout(double seconds) {
    timeout_s_ = seconds;
    group_->set_timeout(seconds);
  }

 private:
  struct Sum;
  InlineSum(std::unique_ptr<InlineClient> client, std::shared_ptr<Group> group,
            const Settings& agreed)
      : client_(std::move(client)),
        group_(std::move(group)),
        settings_(agreed),
        timeout_s_(agreed.timeout_s) {}
  void sum(Sum& sum);
  void look_after(Sum& sum) const;
  void count(const Sum& sum);

  const std::unique_ptr<InlineClient> client_;
  const std::shared_ptr<Group> group_;
  const Settings settings_;
  double timeout_s_;
  SlotCounts counted_;  // so far
};

}  // namespace omnihvd
