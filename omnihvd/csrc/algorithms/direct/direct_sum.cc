#include "algorithms/direct/direct_sum.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "engine/on_all_ranks.h"
#include "engine/stats.h"
#include "engine/while_waiting.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

// Bytes of a sum. Two ranks need one round. More need two, one after the other: on slow links
// larger sums stream faster.
constexpr uint64_t kMostOfTwo = 1 << 20, kMostOfMore = 128 << 10;
constexpr size_t kMostRanks = 16;           // each is a connection of each other one
constexpr int kMostInProcess = 16;          // groups that have such connections
constexpr size_t kFreeBuffers = 32;         // that are kept
constexpr uint64_t kTakenAtOnce = 2 << 10;  // bytes for which an idle connection has room
constexpr microseconds kPoll{50};           // a sleep and a wake-up cost as much
constexpr milliseconds kLookAfter{100};     // before looking who is late
constexpr milliseconds kRound{20};          // of opening connections
constexpr int kMostRounds = 100;
std::atomic<int> in_process{0};

}  // namespace

DirectSum::Lease::Lease() {
  if (++in_process <= kMostInProcess) return;
  --in_process;
  throw Error("this process has direct connections for " + std::to_string(kMostInProcess) +
              " groups, which is the most: leave some, by dist.destroy_process_group()");
}

DirectSum::Lease::~Lease() { --in_process; }

uint64_t DirectSum::most_bytes(const Settings& agreed, const std::vector<std::string>& hosts) {
  std::map<std::string, uint64_t> ranks;
  uint64_t most = 1;  // of one host: they share its link
  for (const std::string& host : hosts) most = std::max(most, ++ranks[host]);
  const bool wanted = agreed.way == Way::automatic && agreed.inline_at.empty() &&
                      agreed.aggregators.empty() && agreed.arithmetic == ArithmeticKind::floats &&
                      agreed.transport == "ucx" && !agreed.encrypt && hosts.size() <= kMostRanks &&
                      agreed.block_size <= DirectRounds::kMostBlock;
  return wanted ? (hosts.size() == 2 ? kMostOfTwo : kMostOfMore) / most : 0;
}

std::unique_ptr<DirectSum> DirectSum::create(Exchange& exchange, const Settings& agreed,
                                             const std::vector<std::string>& hosts) {
  std::unique_ptr<DirectSum> made;
  std::string obstacle =
      on_all_ranks(exchange, [&] { made.reset(new DirectSum(exchange, agreed, hosts)); });
  if (obstacle.empty()) {
    BytesWriter word;
    word.text(made->transport_->address());
    word.text(random_bytes(sizeof made->token_));
    const std::vector<std::string> words = exchange.allgather(word.bytes());
    obstacle = on_all_ranks(exchange, [&] { made->connect(words); });
  }
  if (obstacle.empty() && !made->meet(exchange)) obstacle = "some ranks do not reach each other";
  if (obstacle.empty()) return made;
  if (exchange.rank() == 0)
    log(LogLevel::info, "small sums between hosts are not made directly: ", obstacle);
  return nullptr;
}

DirectSum::DirectSum(const Exchange& exchange, const Settings& agreed,
                     std::vector<std::string> hosts)
    : rank_(exchange.rank()),
      ranks_(exchange.size()),
      hosts_(std::move(hosts)),
      timer_(agreed),
      polling_(kPoll),
      rounds_(rank_, ranks_, agreed.block_size, *this),
      peers_(size_t(ranks_)),
      transport_(make_transport(agreed.transport)) {
  transport_->set_handler(this);
}

void DirectSum::connect(const std::vector<std::string>& words) {
  for (int rank = 0; rank < ranks_; ++rank) {
    BytesReader word(words[size_t(rank)]);
    const std::string address = word.text(), token = word.text();
    if (token.size() != token_.size())
      throw Error("another rank has another omnihvd: install the same one on all hosts");
    if (rank == 0) std::memcpy(token_.data(), token.data(), token.size());
    if (rank != rank_) peers_[size_t(rank)].id = transport_->connect(address);
  }
}

// UCX opens a connection by messages in both directions, and nobody moves any between sums. So all
// ranks do here, until each has heard each other one twice. Collective; the same on all ranks.
bool DirectSum::meet(Exchange& exchange) {
  for (int hellos = 1; hellos <= 2; ++hellos) {
    tell(DirectHeader::hello, "");
    const auto met = [&] {
      for (int rank = 0; rank < ranks_; ++rank)
        if (rank != rank_ && peers_[size_t(rank)].hellos < hellos) return false;
      return true;
    };
    bool all = false;
    for (int round = 0; !all && round < kMostRounds; ++round) {
      const auto end = SteadyClock::now() + kRound;
      // Most ranks have met in the first round. Later ones are for those that have not.
      while (SteadyClock::now() < end && !(round == 0 && met()))
        if (!transport_->progress()) transport_->wait(1);
      const auto words = exchange.allgather(met() ? "met" : "");
      all = std::count(words.begin(), words.end(), "met") == ranks_;
    }
    if (!all) return false;
  }
  return true;
}

DirectSum::~DirectSum() {
  if (!process_.is_this()) {
    static_cast<void>(transport_.release());  // the parent's
    return;
  }
  tell(DirectHeader::leave, "");
  transport_->hurry();
}

std::string DirectSum::name_of(int rank) const {
  return rank_name(uint64_t(rank), hosts_[size_t(rank)]);
}

// --- messages ------------------------------------------------------------------------------------

uint8_t* DirectSum::room() {
  room_ = std::make_shared<Outgoing>();
  if (free_.empty()) {
    room_->buffer = Buffer(new uint64_t[DirectRounds::kMessage / 8]);
  } else {
    room_->buffer = std::move(free_.back());
    free_.pop_back();
  }
  auto* const bytes = reinterpret_cast<uint8_t*>(room_->buffer.get());
  std::memcpy(bytes, token_.data(), token_.size());
  return bytes;
}

void DirectSum::send(int rank, size_t bytes) {
  ++room_->unsent;
  sending_[++cookie_] = {room_, rank};
  ++peers_[size_t(rank)].unsent;
  const Slice slice{room_->buffer.get(), bytes};
  transport_->send(peers_[size_t(rank)].id, &slice, 1, cookie_);
  stats().messages_sent += 1;
  stats().bytes_sent += bytes;
}

void DirectSum::on_sent(uint64_t cookie) {
  const auto found = sending_.find(cookie);
  if (found == sending_.end()) return;
  const auto& [message, rank] = found->second;
  --peers_[size_t(rank)].unsent;
  if (--message->unsent == 0 && free_.size() < kFreeBuffers)
    free_.push_back(std::move(message->buffer));
  sending_.erase(found);
}

void DirectSum::on_peer_failed(PeerId peer, const std::string& reason) {
  for (int rank = 0; rank < ranks_; ++rank)
    if (rank != rank_ && peers_[size_t(rank)].id == peer) peers_[size_t(rank)].lost = reason;
}

// Anybody who knows the address can send.
void DirectSum::on_message(const uint8_t* data, size_t size) {
  const auto* const message = reinterpret_cast<const DirectHeader*>(data);
  if (size < sizeof *message ||
      !equal_in_constant_time(message->token, token_.data(), token_.size()) ||
      message->from >= uint32_t(ranks_) || int(message->from) == rank_ ||
      message->kind > DirectHeader::leave) {
    stats().messages_refused += 1;
    log(LogLevel::info, "refused a message of ", size, " bytes that is not of this group");
    return;
  }
  stats().bytes_received += size;
  hear(*message, size);
}

void DirectSum::hear(const DirectHeader& message, size_t size) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&message);
  switch (message.kind) {
    case DirectHeader::failure:
      if (failure_.empty())
        failure_.assign(reinterpret_cast<const char*>(bytes + sizeof message),
                        size - sizeof message);
      return;
    case DirectHeader::last: return;
    case DirectHeader::hello: ++peers_[message.from].hellos; return;
    case DirectHeader::leave: peers_[message.from].left = true; return;
    case DirectHeader::pass:
      if (message.number > number_) break;
      if (message.number == number_ && under_way_ && failure_.empty())
        fail(differs(message, rounds_.call()));
      return;
    default: break;
  }
  if (message.number > number_ || (message.number == number_ && !under_way_)) {
    early_.push_back({std::vector<uint64_t>((size + 7) / 8), size});
    std::memcpy(early_.back().words.data(), bytes, size);
    return;
  }
  if (!failure_.empty()) return;
  if (message.number == number_ && message.call != rounds_.call().word)
    fail(differs(message, rounds_.call()));
  if (message.number < number_ || !rounds_.take(message, size))
    fail("a message of " + name_of(int(message.from)) +
         " does not fit its sum: install the same omnihvd on all hosts");
}

std::string DirectSum::differs(const DirectHeader& theirs, SmallCall mine) const {
  const auto text = [](SmallCall call) { return sum_text(call.count(), call.dtype(), {}); };
  return differ_text(name_of(int(theirs.from)), text(SmallCall(theirs.call)), name_of(rank_),
                     text(mine));
}

void DirectSum::tell(DirectHeader::Kind kind, const std::string& text) noexcept {
  try {
    uint8_t* const message = room();
    auto& header = *reinterpret_cast<DirectHeader*>(message);
    std::memset(message + token_.size(), 0, sizeof header - token_.size());
    header.number = number_;
    header.call = passed_.word;
    header.kind = kind;
    header.from = uint32_t(rank_);
    const size_t length = std::min<size_t>(text.size(), 4096);
    std::copy_n(text.data(), length, message + sizeof header);
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != rank_ && peers_[size_t(rank)].lost.empty() && !peers_[size_t(rank)].left)
        send(rank, sizeof header + length);
  } catch (const std::exception& why) {
    log(LogLevel::info, "the other ranks cannot be told that a sum has failed: ", why.what());
  }
}

// --- calls ---------------------------------------------------------------------------------------

uint64_t DirectSum::allreduce(const Call& call) {
  if (!failure_.empty()) fail(failure_);
  timer_.begin_sum();
  ++number_;
  under_way_ = true;
  rounds_.begin(call.in, call.out, SmallCall(call.count, call.dtype), number_);
  const auto early = std::exchange(early_, {});
  for (const Early& message : early) hear(message.header(), message.size);
  wait([this] { return rounds_.complete(); });
  settle();
  under_way_ = false;
  was_direct_ = true;
  Stats& s = stats();
  s.calls += 1;
  s.bytes_in += call.bytes();
  s.ring_bytes += ring_bytes(uint64_t(ranks_), call.bytes());
  s.blocks += rounds_.blocks();
  s.nonzero_blocks += rounds_.nonzero_blocks();
  s.result_blocks += rounds_.united_blocks();
  return rounds_.united_blocks();
}

// Tells the others if the last sum was a direct one. A program in which ranks differ does so there,
// and a rank that waits in the library cannot look. Between two large sums nobody moves messages.
void DirectSum::pass(const Call& call) {
  ++number_;
  passed_ = SmallCall(call.count, call.dtype);
  const auto old = [this](const Early& message) {
    const bool passes = message.header().kind == DirectHeader::pass;
    return message.header().number < number_ + passes;
  };
  early_.erase(std::remove_if(early_.begin(), early_.end(), old), early_.end());
  if (std::exchange(was_direct_, false)) tell(DirectHeader::pass, "");
}

std::string DirectSum::look() {
  transport_->progress();
  for (const Early& early : early_) {
    const DirectHeader& message = early.header();
    if (message.number == number_ && message.kind != DirectHeader::pass && failure_.empty())
      abort(differs(message, passed_));
  }
  return failure_;
}

// Nobody moves messages between sums, so the system must have all that was sent. A send may end
// while UCX still has a part that the connection did not take. The next send on it then waits for
// that part. So this rank sends once more, a message that may come at any time.
void DirectSum::settle() {
  wait([this] { return sending_.empty(); });
  if (rounds_.call().count() * size_of(rounds_.call().dtype()) <= kTakenAtOnce) return;
  tell(DirectHeader::last, "");
  wait([this] { return sending_.empty(); });
}

template <typename Done>
void DirectSum::wait(Done done) {
  if (done()) return;
  timer_.begin_wait();
  polling_.on_work(Polling::Clock::now());
  WhileWaiting* const waiting = WhileWaiting::here();
  const milliseconds step = waiting ? std::min(waiting->every(), kLookAfter) : kLookAfter;
  auto looked = SteadyClock::now();
  while (!done()) {
    const bool any = transport_->progress();
    if (!failure_.empty()) fail(failure_);
    const auto now = Polling::Clock::now();
    if (any) polling_.on_work(now);
    if (any || !polling_.may_sleep(now)) continue;
    transport_->wait(int(step.count()));
    if (waiting) waiting->work();
    if (SteadyClock::now() - looked < kLookAfter) continue;
    looked = SteadyClock::now();
    check();
  }
}

void DirectSum::check() {
  std::string late;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Peer& peer = peers_[size_t(rank)];
    const bool lacks = rounds_.lacks(rank);
    if (rank == rank_ || (!lacks && peer.unsent == 0)) continue;
    if (lacks && !peer.lost.empty())
      fail(name_of(rank_) + " lost the connection to " + name_of(rank) + ": " + peer.lost);
    if (lacks && peer.left)
      fail(name_of(rank) + " left the job while the others wait for its part of a sum");
    if (lacks || rounds_.complete()) late += (late.empty() ? "" : ", ") + name_of(rank);
  }
  const SmallCall call = rounds_.call();
  const std::string sum = sum_text(call.count(), call.dtype(), {});
  if (const std::string why = timer_.overdue(sum, late); !why.empty()) fail(why);
}

void DirectSum::abort(const std::string& why) noexcept {
  if (!failure_.empty()) return;
  failure_ = why;
  tell(DirectHeader::failure, why);
}

void DirectSum::fail(const std::string& why) {
  abort(why);
  stats().failures += 1;
  throw Error(failure_);
}

}  // namespace omnihvd
