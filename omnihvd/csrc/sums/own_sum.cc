#include "sums/own_sum.h"

#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "sums/host_grid.h"

namespace omnihvd {
namespace {

// Rank 0 says why not, once in a process.
std::unique_ptr<TwoLevels> two_levels(Exchange& exchange, const Settings& settings,
                                      const std::vector<std::string>& hosts) {
  const Hierarchy wanted = settings.hierarchy;
  if (wanted == Hierarchy::off) return nullptr;
  std::string obstacle;
  std::unique_ptr<TwoLevels> levels;
  if (const char* const no_grid = grid_obstacle(hosts))
    obstacle = no_grid;
  else
    levels = TwoLevels::create(exchange, settings, hosts, &obstacle);
  static std::once_flag once;
  if (!levels && exchange.rank() == 0)
    std::call_once(once, [&] {
      log(wanted == Hierarchy::on ? LogLevel::warning : LogLevel::info, "the ", hosts.size(),
          " ranks of a communicator stream without reducing inside the hosts first: ", obstacle);
    });
  return levels;
}

std::unique_ptr<SharedSum> shared_sum(Exchange& exchange, const Settings& settings,
                                      const std::vector<std::string>& hosts) {
  const bool one_host = std::equal(hosts.begin() + 1, hosts.end(), hosts.begin());
  const bool streams = settings.way == Way::stream || settings.way == Way::coded;
  if (streams || !one_host || hosts.size() < 2) return nullptr;
  std::string obstacle;
  auto sum = SharedSum::create(exchange, settings, hosts[0], &obstacle);
  if (!sum && exchange.rank() == 0)
    log(settings.way == Way::shared ? LogLevel::warning : LogLevel::info,
        "the ranks of a communicator, all on ", hosts[0],
        ", send messages instead of using shared memory: ", obstacle);
  return sum;
}

}  // namespace

OwnSum::OwnSum(Exchange& exchange, const Settings& settings, const std::vector<std::string>& hosts)
    : whole_inside_(settings.compress_first == CompressionFirst::off) {
  if (!settings.inline_at.empty()) inline_ = InlineSum::create(exchange, settings, hosts);
  if (inline_) {
    group_ = inline_->group();
    return;
  }
  shared_ = shared_sum(exchange, settings, hosts);
  if (!shared_) levels_ = two_levels(exchange, settings, hosts);
  if (!shared_ && !levels_) group_ = process_engine(exchange)->join(exchange, settings);
}

Ways::SumMade OwnSum::allreduce(const void* in, void* out, uint64_t count, DType dtype,
                                const Codec& codec) {
  if (inline_ && InlineSum::takes(dtype, codec))
    return {Way::inlined, inline_->allreduce(in, out, count, dtype)};
  const Codec inside = whole_inside_ ? Codec() : codec;
  if (shared_) return {Way::shared, shared_->allreduce(in, out, count, dtype, inside)};
  const Way way = codec.kind == CodecKind::lossless ? Way::coded : Way::stream;
  if (levels_) return {way, levels_->allreduce(in, out, count, dtype, inside, codec)};
  return {way, group_->allreduce(in, out, count, dtype, codec)};
}

}  // namespace omnihvd
