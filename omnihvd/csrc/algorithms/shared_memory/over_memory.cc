// The algorithm "shared": SharedSum for the ranks of one host.
#include <algorithm>
#include <cstring>
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/scratch.h"
#include "algorithms/shared_memory/shared_sum.h"
#include "base/log.h"

namespace omnihvd {
namespace {

class OverMemory final : public Algorithm {
 public:
  OverMemory(std::unique_ptr<SharedSum> sum, const Settings& agreed, int rank)
      : sum_(std::move(sum)),
        codes_(agreed.compress_first != CompressionFirst::off),
        block_size_(agreed.block_size),
        rank_(rank) {}

  SumMade run(const Call& call, Library&) override {
    const Codec codec = codes_ ? call.codec : Codec();
    if (!call.scatters())
      return {Way::shared, sum_->allreduce(call.in, call.out, call.count, call.dtype, codec)};
    // A rank also adds parts of other ranks' shares.
    const size_t element = size_of(call.dtype);
    uint8_t* const sums = scratch_.of(call.bytes());
    const uint64_t before = call.begin_of(rank_), own = call.elements_of(rank_);
    const SharedSum::Blocks part{before / block_size_,
                                 (before + own + block_size_ - 1) / block_size_};
    const uint64_t united =
        sum_->reduce_scatter(call.in, sums, call.count, call.dtype, codec, part, nullptr);
    if (own > 0) std::memcpy(call.out, sums + before * element, own * element);
    return {Way::shared, united};
  }
  void set_timeout(double seconds) override { sum_->set_timeout(seconds); }
  void fail(const std::string& why) override { sum_->abort(why); }

 private:
  const std::unique_ptr<SharedSum> sum_;
  const bool codes_;  // inside a host; else between hosts alone
  const uint64_t block_size_;
  const int rank_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<Algorithm> make_shared_memory(Exchange& exchange, const Settings& agreed,
                                              const std::vector<std::string>& hosts) {
  const bool one_host = std::equal(hosts.begin() + 1, hosts.end(), hosts.begin());
  const bool streams = agreed.way == Way::stream || agreed.way == Way::coded;
  if (streams || !one_host || hosts.size() < 2) return nullptr;
  std::string obstacle;
  auto sum = SharedSum::create(exchange, agreed, hosts[0], &obstacle);
  if (sum) return std::make_unique<OverMemory>(std::move(sum), agreed, exchange.rank());
  if (exchange.rank() == 0)
    log(agreed.way == Way::shared ? LogLevel::warning : LogLevel::info,
        "the ranks of a communicator, all on ", hosts[0],
        ", send messages instead of using shared memory: ", obstacle);
  return nullptr;
}

}  // namespace omnihvd
