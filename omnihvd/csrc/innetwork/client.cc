#include "innetwork/client.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "innetwork/addresses.h"

namespace omnihvd {
namespace {

constexpr size_t kBatch = 64;            // datagrams
constexpr uint64_t kAskEvery = 300'000;  // microseconds: how often to ask for the aggregator
constexpr uint64_t kJoinEvery = kAskEvery / 3;

// Any port of the local address from which this host reaches the other.
sockaddr_in any_port_towards(uint64_t other) {
  const FileDescriptor probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in at = socket_address(other);
  socklen_t size = sizeof at;
  if (connect(probe, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      getsockname(probe, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    throw Error(std::string("the aggregator cannot be reached: ") + std::strerror(errno));
  at.sin_port = 0;
  return at;
}

}  // namespace

InlineClient::InlineClient(const Options& options, const Meanwhile& meanwhile)
    : options_(options),
      secret_(options.secret),
      aggregator_(ipv4(options.host, options.port)),
      socket_(any_port_towards(aggregator_)),
      out_(kBatch * INLINE_FULL_BYTES) {
  if (options.ranks < 1 || options.ranks > INLINE_WORKERS || options.rank >= options.ranks)
    throw Error("a job has 1 to " + std::to_string(INLINE_WORKERS) +
                " workers for in-network aggregation, each with a rank below their number");
  join(meanwhile);
}

InlineClient::~InlineClient() {
  if (process_.is_this()) say(INLINE_LEAVE, 0);
}

std::string InlineClient::says(const std::string& why) const {
  const std::string name =
      options_.name.empty() ? "rank " + std::to_string(options_.rank) : options_.name;
  return name + ": the aggregator at " + options_.host + ":" + std::to_string(options_.port) + " " +
         why;
}

void InlineClient::say(uint8_t kind, uint8_t flags) {
  inline_head head{};
  head.key = options_.session;
  head.kind = kind;
  head.flags = flags;
  head.worker = uint16_t(options_.rank);
  head.round = options_.ranks;
  head.numbers = options_.numbers;
  if (flags & INLINE_REPEAT) std::tie(head.slot, head.block) = worker_->awaited();
  uint8_t bytes[kSignedBytes];
  secret_.sign(head, bytes);
  socket_.add(socket_address(aggregator_), bytes, sizeof bytes, {nullptr, 0});
  socket_.flush();
}

void InlineClient::join(const Meanwhile& meanwhile) {
  heard_at_ = called_at_ = clock_.now();
  while (!welcome_) {
    say(INLINE_JOIN, 0);
    const uint64_t until = clock_.now() + kJoinEvery;
    for (uint64_t now = clock_.now(); !welcome_ && now < until; now = clock_.now())
      step(until - now, meanwhile);
    if (!welcome_ && clock_.now() - heard_at_ > uint64_t(options_.patience_s * 1e6))
      fail("does not answer: start it with the same secret, and let UDP through to its port");
  }
  if (welcome_->next) join_group(welcome_->block, uint16_t(welcome_->next));
  worker_ = std::make_unique<SlotWorker>(
      SlotWorker::Place{secret_.job_key(options_.session), welcome_->job, uint16_t(options_.rank),
                        welcome_->slot},
      uint64_t(options_.shortest_s * 1e6), uint64_t(options_.longest_s * 1e6));
}

void InlineClient::join_group(uint32_t address, uint16_t port) {
  const sockaddr_in at = socket_address(uint64_t{address} << 16 | port);
  group_.emplace(at, true);
  const ip_mreq request{at.sin_addr, any_port_towards(aggregator_).sin_addr};
  if (setsockopt(group_->fd(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) != 0)
    fail(std::string("sends to a multicast group that cannot be joined: ") + std::strerror(errno));
}

void InlineClient::sum(void* data, uint64_t count, DType dtype, bool dense,
                       const Meanwhile& meanwhile, Codec codec) {
  process_.check();
  if (!failure_.empty()) throw Error(failure_);
  if (options_.numbers == INLINE_NATURAL)
    codec = {CodecKind::natural, 0, false, uint32_t(options_.session) + sums_++};
  if (codec && !(welcome_->flags & INLINE_CODES))
    fail(
        "adds no powers of two of natural(): start it with --udp or --af-xdp in place of --xdp, or "
        "leave out the codec, or OMNIHVD_ARITHMETIC");
  const auto tensor = make_inline_tensor(data, {count, dtype, options_.ranks, welcome_->slot, dense,
                                                bool(codec), codec.seed, options_.rank});
  try {
    // Odd factors map different tensors to different numbers.
    const uint64_t what = count << 8 | uint64_t(codec.kind) << 5 | uint64_t(dtype);
    sum(*tensor, what * 0x9E3779B97F4A7C15, meanwhile);
  } catch (const std::exception& why) {
    failure_ = why.what();
    throw;
  }
}

void InlineClient::sum(InlineTensor& tensor, uint64_t what, const Meanwhile& meanwhile) {
  const uint64_t begun = clock_.now();
  fine_at_ += begun - heard_at_;  // of the time between sums nothing counts
  heard_at_ = called_at_ = begun;
  missing_ = 0;
  refusals_.clear();
  worker_->begin(heard_at_, tensor, what);
  const uint64_t longest = std::min(meanwhile.every_us, kAskEvery);
  for (;;) {
    send_all();
    if (worker_->differs())
      fail("has a tensor of another size or dtype from another worker: let all sum the same");
    if (worker_->done()) return;
    const uint64_t now = clock_.now(), wake = worker_->wake_at().value_or(now + longest);
    step(std::min(wake > now ? wake - now : 0, longest), meanwhile);
    look_after_others();
  }
}

// Names the missing workers, then says what to do.
std::string InlineClient::missing() const {
  if (missing_ >> options_.rank & 1)
    return "this worker: its datagrams do not arrive there, so let UDP through to it";
  std::string ranks;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank)
    if (missing_ >> rank & 1) ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(rank);
  return (ranks.empty() ? "other workers" : ranks) +
         ". If they have ended, start the whole job again; if they are only late, set more "
         "patience";
}

// The others may just be late: their aggregator answers that it is there. The client gives up only
// after one more question has had time for its answer.
void InlineClient::look_after_others() {
  if (worker_->done()) return;  // nothing to ask for
  const uint64_t now = clock_.now();
  if (now - asked_at_ <= kAskEvery) return;
  const std::string why = why_give_up(now);
  if (in_doubt_ && !why.empty()) fail(why);
  in_doubt_ = !why.empty();
  if (!in_doubt_ && now - heard_at_ <= kAskEvery) return;
  asked_at_ = now;
  say(INLINE_JOIN, INLINE_REPEAT);
}

// Empty if there is no reason to give up.
std::string InlineClient::why_give_up(uint64_t now) const {
  const uint64_t patience = uint64_t(options_.patience_s * 1e6);
  if (now - heard_at_ > patience)
    return "has sent nothing for too long: is its host up? Start it and the job again";
  if (now - fine_at_ > patience) return not_through();
  const double waited_s = double(now - worker_->moved_at()) / 1e6;
  if (options_.workers_patience_s <= 0 || waited_s < options_.workers_patience_s) return {};
  std::ostringstream why;
  why << "has sent no result for " << waited_s << " s (workers_patience_s is "
      << options_.workers_patience_s << "): it waits for " << missing();
  return why.str();
}

void InlineClient::send_all() {
  const sockaddr_in to = socket_address(aggregator_);
  for (size_t filled = 1; filled > 0;) {
    for (filled = 0; filled < kBatch; ++filled) {
      uint8_t* const at = &out_[filled * INLINE_FULL_BYTES];
      const size_t size = worker_->next(clock_.now(), at);
      if (size == 0) break;
      socket_.add(to, at, INLINE_HEAD_BYTES, {at + INLINE_HEAD_BYTES, size - INLINE_HEAD_BYTES});
    }
    socket_.flush();
  }
}

void InlineClient::step(uint64_t timeout_us, const Meanwhile& meanwhile) {
  pollfd waits[] = {{socket_.fd(), POLLIN, 0}, {group_ ? group_->fd() : -1, POLLIN, 0}};
  const timespec timeout{time_t(timeout_us / 1'000'000), long(timeout_us % 1'000'000 * 1000)};
  const bool signal = ppoll(waits, 2, &timeout, nullptr) < 0 && errno == EINTR;
  bool for_all = !group_;
  const auto take_one = [&](const sockaddr_in&, const uint8_t* data, size_t size) {
    take(data, size, for_all);
  };
  const bool refused = waits[0].revents & POLLERR && look_for_refusals();
  if (waits[0].revents) socket_.receive(take_one);
  for_all = true;
  if (waits[1].revents) group_->receive(take_one);
  const uint64_t now = clock_.now();
  if (refused && refusals_.enough(now)) fail("has ended: start it and the job again");
  if (!meanwhile.call || (!signal && now - called_at_ < meanwhile.every_us)) return;
  called_at_ = now;
  meanwhile.call();
}

// for_all: where new results come, not only those that this worker has asked for again.
void InlineClient::take(const uint8_t* data, size_t size, bool for_all) {
  if (worker_ && size != kSignedBytes) {
    const uint64_t now = clock_.now();
    if (!worker_->take(now, data, size)) return;
    heard_at_ = now;
    if (for_all) fine_at_ = now;
    refusals_.clear();
  } else {
    take_control(data, size);
  }
}

void InlineClient::take_control(const uint8_t* data, size_t size) {
  const auto head = secret_.proven(data, size);
  if (!head || head->key != options_.session || head->worker != options_.rank) return;
  heard_at_ = clock_.now();
  refusals_.clear();
  const bool welcome = head->kind == INLINE_WELCOME;
  if (welcome && !(head->flags & INLINE_THERE)) fine_at_ = heard_at_;
  if (welcome && head->flags & INLINE_REPEAT) missing_ = head->block;
  if (head->kind == INLINE_REFUSAL)
    throw InlineRefused(says("refuses this job: " + reason(InlineRefusal(head->flags))));
  if (welcome && !welcome_ && head->slot > 0) welcome_ = head;
}

std::string InlineClient::not_through() const {
  const std::string port = std::to_string(group_ ? group_->port() : socket_.port());
  return "sends results, but none arrives: let UDP through to port " + port + " of this host" +
         (group_ ? ", and multicast between the hosts (docs/in-network.md says it of veth)" : "");
}

// Has the aggregator's host said that nobody listens there? One that lives answers, and is heard.
bool InlineClient::look_for_refusals() {
  socket_.expect_refusals();
  bool any = false;
  for (const sockaddr_in& to : socket_.refusals()) {
    if (!worker_ || number_of(to) != aggregator_) continue;
    if (!refusals_.any()) say(INLINE_JOIN, INLINE_REPEAT);
    refusals_.add(clock_.now());
    any = true;
  }
  return any;
}

}  // namespace omnihvd
