// Sums through an in-network aggregator (OMNIHVD_INLINE, innetwork/client.h) instead of streaming.
//
// Every rank is a worker of the aggregator. The aggregator adds integers and knows nothing of the
// job, so each communicator also has a group of the engine. The group makes the sums that such an
// aggregator does not, and with each sum that does go through the aggregator the ranks tell each
// other by the engine that they have begun it. So a rank that is late, has ended or sums something
// else is detected, named and bounded by time-outs as for all streamed sums, and if the sum fails
// on one rank it fails on all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/network_sum.h"
#include "innetwork/client.h"

namespace omnihvd {

// One thread at a time.
class InlineSum final : public NetworkSum {
 public:
  static std::unique_ptr<NetworkSum> create(Exchange& exchange, const Settings& agreed,
                                            const std::vector<std::string>& hosts);

  bool takes(DType dtype, const Codec& codec) const override {
    return inline_takes(dtype) && !codec;
  }
  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype) override;
  const std::shared_ptr<Group>& group() const override { return group_; }
  void set_timeout(double seconds) override {
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
