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

#include "algorithms/streamed.h"
#include "innetwork/client.h"

namespace omnihvd {

// One thread at a time.
class InlineSum final : public Streamed {
 public:
  // MakeAlgorithm. Does not fit if the aggregator does not take the job.
  static std::unique_ptr<Algorithm> create(Exchange& exchange, const Settings& agreed,
                                           const std::vector<std::string>& hosts);

  SumMade run(const Call& call, Library& library) override;
  void set_timeout(double seconds) override {
    timeout_s_ = seconds;
    Streamed::set_timeout(seconds);
  }

 private:
  struct Sum;
  InlineSum(std::unique_ptr<InlineClient> client, std::shared_ptr<Group> group,
            const Settings& agreed)
      : Streamed(std::move(group)),
        client_(std::move(client)),
        settings_(agreed),
        timeout_s_(agreed.timeout_s) {}
  void sum(Sum& sum);
  void look_after(Sum& sum) const;
  void count(const Sum& sum);

  const std::unique_ptr<InlineClient> client_;
  const Settings settings_;
  double timeout_s_;
  SlotCounts counted_;  // so far
};

}  // namespace omnihvd
