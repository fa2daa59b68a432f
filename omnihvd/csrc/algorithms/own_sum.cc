#include "algorithms/own_sum.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>

#include "algorithms/host_grid.h"
#include "base/error.h"
#include "base/log.h"
#include "base/plugin.h"
#include "engine/on_all_ranks.h"
#include "protocol/seats.h"

namespace omnihvd {
namespace {

std::atomic<MakeNetworkSum> make_network_sum{nullptr};

// If there are none, rank 0 logs why, once in a process.
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

void set_network_sum(MakeNetworkSum make) { make_network_sum = make; }

OwnSum::OwnSum(Exchange& exchange, const Settings& settings, const std::vector<std::string>& hosts)
    : whole_inside_(settings.compress_first == CompressionFirst::off),
      rank_(size_t(exchange.rank())),
      block_size_(settings.block_size) {
  if (!settings.inline_at.empty()) {
    start_on_all_ranks(exchange, [] { load_part("innetwork"); });
    inline_ = make_network_sum.load()(exchange, settings, hosts);
  }
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
  if (inline_ && inline_->takes(dtype, codec))
    return {Way::inlined, inline_->allreduce(in, out, count, dtype)};
  const Codec inside = whole_inside_ ? Codec() : codec;
  if (shared_) return {Way::shared, shared_->allreduce(in, out, count, dtype, inside)};
  const Way way = codec.kind == CodecKind::lossless ? Way::coded : Way::stream;
  if (levels_) return {way, levels_->allreduce(in, out, count, dtype, inside, codec)};
  return {way, group_->allreduce(in, out, count, dtype, codec)};
}

void OwnSum::set_timeout(double seconds) {
  if (inline_) inline_->set_timeout(seconds);  // its group's, too
  if (shared_) shared_->set_timeout(seconds);
  if (levels_) levels_->set_timeout(seconds);
  if (group_) group_->set_timeout(seconds);
}

void OwnSum::fail(const std::string& why) {
  if (shared_) shared_->abort(why);
  if (levels_) levels_->fail(why);
  if (group_) group_->fail(why);
}

bool OwnSum::can_scatter(const Settings& settings, const std::vector<std::string>& hosts) {
  if (!settings.aggregators.empty()) return false;
  const bool grid = settings.hierarchy != Hierarchy::off && !grid_obstacle(hosts);
  try {
    return !grid && fans_of(settings.levels, uint32_t(hosts.size()), 0).size() == 1;
  } catch (const Error&) {  // an allreduce reports it
    return false;
  }
}

uint8_t* OwnSum::scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();  // frees first, so that there are never two
    scratch_bytes_ = 0;
    scratch_.reset(new uint8_t[bytes]);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

Ways::SumMade OwnSum::reduce_scatter(const void* in, void* out, const std::vector<uint64_t>& shares,
                                     DType dtype, const Codec& codec) {
  const size_t element = size_of(dtype), share = shares[rank_] * element;
  const auto own = shares.begin() + ptrdiff_t(rank_);
  const uint64_t before = std::accumulate(shares.begin(), own, uint64_t{0});
  const uint64_t count = std::accumulate(own, shares.end(), before);
  const auto* const from = static_cast<const uint8_t*>(in);
  auto* const to = static_cast<uint8_t*>(out);
  const uint8_t* made = to;
  Ways::SumMade sum{Way::shared, 0};
  if (shared_) {
    // Over shared memory a rank also adds parts of other ranks' shares.
    uint8_t* const sums = scratch(count * element);
    const SharedSum::Blocks part{before / block_size_,
                                 (before + *own + block_size_ - 1) / block_size_};
    sum.united_blocks = shared_->reduce_scatter(in, sums, count, dtype,
                                                whole_inside_ ? Codec() : codec, part, nullptr);
    made = sums + before * element;
  } else {
    OMNIHVD_INVARIANT(group_);
    const bool apart = to + share <= from || from + count * element <= to;
    uint8_t* const sums = apart || to == from + before * element ? to : scratch(share);
    sum.way = codec.kind == CodecKind::lossless ? Way::coded : Way::stream;
    sum.united_blocks = group_->reduce_scatter(in, sums, shares, dtype, codec);
    made = sums;
  }
  if (made != to && share > 0) std::memcpy(out, made, share);
  return sum;
}

}  // namespace omnihvd
