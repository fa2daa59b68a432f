#include "algorithms/shared_memory/small_sum.h"

#include <algorithm>

#include "algorithms/shared_memory/layout.h"
#include "base/log.h"
#include "engine/host_facts.h"
#include "engine/stats.h"

namespace omnihvd {
namespace {

constexpr size_t kMostBytes = 256 << 10;         // of a sum
constexpr size_t kMostInAll = 8 << 20;           // of one buffer of all ranks
constexpr std::chrono::microseconds kSpin{100};  // a sleep and a wake-up cost some 10 us, or 50

std::string text_of(SmallCall call) { return sum_text(call.count(), call.dtype(), {}); }

std::vector<uint8_t*> parts_of(const Segment& segment, int ranks) {
  std::vector<uint8_t*> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(segment.of(rank));
  return parts;
}

}  // namespace

struct SmallSum::Control {
  alignas(128) Bell bell;
  alignas(128) SharedFailure failure;
};

bool SmallSum::wanted(const Settings& agreed, const std::vector<std::string>& hosts) {
  return (agreed.way == Way::automatic || agreed.way == Way::shared) && agreed.inline_at.empty() &&
         hosts.size() > 1 && std::equal(hosts.begin() + 1, hosts.end(), hosts.begin());
}

std::unique_ptr<SmallSum> SmallSum::create(Exchange& exchange, const Settings& agreed,
                                           const std::string& host) {
  const size_t most = std::min(kMostBytes, round_up(kMostInAll / size_t(exchange.size()), 64));
  std::string obstacle;
  auto segment = Segment::create(exchange, round_up(sizeof(Control), 4096),
                                 round_up(part_bytes(most), 4096), &obstacle);
  if (!segment) {
    if (exchange.rank() == 0)
      log(LogLevel::info, "small sums of the ranks of a communicator, all on ", host,
          ", stay with the original library: ", obstacle);
    return nullptr;
  }
  const bool core_each = has_core_each(exchange);
  return std::unique_ptr<SmallSum>(
      new SmallSum(std::move(segment), most, exchange, agreed, host, core_each));
}

SmallSum::SmallSum(std::unique_ptr<Segment> segment, size_t most_bytes, Exchange& exchange,
                   const Settings& agreed, const std::string& host, bool core_each)
    : SmallMemory(parts_of(*segment, exchange.size()),
                  reinterpret_cast<Control*>(segment->common())->bell, most_bytes, exchange.rank()),
      segment_(std::move(segment)),
      peers_(*segment_, reinterpret_cast<Control*>(segment_->common())->failure, exchange.rank(),
             exchange.size(), agreed, host, {}),
      spin_(core_each ? kSpin : kSpin.zero()) {}

SmallSum::~SmallSum() {
  if (process_.is_this()) head(rank_).left.store(1);
}

void SmallSum::allreduce(const Call& call) {
  peers_.throw_if_failed();
  peers_.begin();
  now_ = SmallCall(call.count, call.dtype);
  sum(call.in, call.out, now_);
  const uint64_t ring = ring_bytes(uint64_t(ranks()), call.bytes());
  stats().calls += 1;
  stats().bytes_in += call.bytes();
  stats().ring_bytes += ring;
  stats().between_hosts_bytes += ring;
}

void SmallSum::pass(const Call& call) {
  now_ = SmallCall(call.count, call.dtype);
  SmallMemory::pass(now_);
}

void SmallSum::await(Stamp stamp) {
  const auto open = [&] { return all_stamped(stamp); };
  if (Peers::spin(open, spin_)) return;
  const auto progress = [&](int rank) {
    SmallHead& theirs = head(rank);
    const bool left = theirs.left.load() != 0;  // before that it stamped all that it made
    if (has_stamped(rank, stamp)) return Peers::Progress::come;
    if (theirs.apart.load() >= call()) differs(rank, SmallCall(theirs.apart_call.load()));
    return left ? Peers::Progress::left : Peers::Progress::late;
  };
  peers_.wait(
      open, [&](auto at_most) { bell_.sleep_unless(open, at_most); }, progress, text_of(now_));
}

void SmallSum::differs(int rank, SmallCall theirs) {
  peers_.fail_as_different(rank, text_of(theirs), text_of(now_));
}

}  // namespace omnihvd
