#include "simulator/csrc/engine_thread.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace omnihvd::simulation {
namespace {

constexpr Number kOne = 1;

uint64_t key_of(const Seat& seat) { return uint64_t(seat.level) << 32 | seat.share; }

void refer(Parcel& parcel) {
  for (size_t i = 0; i < parcel.numbers.size(); ++i)
    parcel.frame.blocks[i].data = reinterpret_cast<const uint8_t*>(&parcel.numbers[i]);
}

}  // namespace

// A tensor of ones that verifies what is written.
class EngineThread::Ones : public Tensor {
 public:
  Ones(World& world, const std::vector<bool>& has) : world_(world), has_(has) {}
  bool nonzero(uint64_t block) override { return has_[block]; }
  BlockRef read(uint64_t, uint64_t position) override {
    return {position, reinterpret_cast<const uint8_t*>(&kOne), sizeof kOne, false};
  }
  void next_message() override {}
  void write(uint64_t block, const BlockRef& sum) override {
    Number got;
    std::memcpy(&got, sum.data, sizeof got);
    ++world_.written;
    if (got != world_.expected[block])
      throw Error("simulated: block " + std::to_string(block) + " came to " + std::to_string(got) +
                  ", and " + std::to_string(world_.expected[block]) + " ranks have it");
  }
  void write_zero(uint64_t) override {}
  bool wants_zeros() const override { return false; }

 private:
  World& world_;
  const std::vector<bool>& has_;
};

// An aggregator of this process.
struct EngineThread::Node : Aggregator::Sink {
  Node(EngineThread& of, const Seat& at, uint32_t member_count)
      : thread(of),
        seat(at),
        members(member_count),
        aggregator(of.world_.layout, at.share, members, of.stream_, of.world_.job.streams, false,
                   of.world_.seats.below(at, of.self_)) {}

  void result(const Frame& frame) override {
    double bytes;
    thread.spread(*this, thread.parcel_of(frame, seat, &bytes));
    thread.released_.push_back({seat, {frame.slot, frame.round}});
  }
  void contribution(const Frame& frame) override {
    const uint32_t member = thread.world_.seats.member_of(seat.level + 1, thread.self_);
    thread.contribute({seat.level + 1, seat.share}, member, frame);
    thread.released_.push_back({seat, {frame.slot, frame.round}});
  }

  EngineThread& thread;
  const Seat seat;
  const uint32_t members;
  Aggregator aggregator;
};

EngineThread::EngineThread(World& world, std::vector<std::unique_ptr<EngineThread>>& all,
                           uint32_t self, uint32_t stream)
    : world_(world), all_(all), self_(self), stream_(stream) {
  const Job& job = world.job;
  const auto add = [&](const Seat& seat, uint32_t members) {
    nodes_.emplace(key_of(seat), std::make_unique<Node>(*this, seat, members));
  };
  const Seats& seats = world.seats;
  if (self >= job.workers) {
    add({world.top(), self - job.workers}, seats.members(world.top(), self));
    return;
  }
  for (uint32_t level = 1; level <= world.top() - (job.dedicated > 0); ++level)
    for (uint32_t share = 0; share < world.layout.shape().aggregators; ++share)
      if (seats.host({level, share}, self) == self) add({level, share}, seats.members(level, self));
  tensor_ = std::make_unique<Ones>(world, job.has.size() == 1 ? job.has[0] : job.has[self]);
  worker_.emplace(world.layout, *tensor_, job.scan_ahead, stream, job.streams);
}

EngineThread::~EngineThread() = default;

void EngineThread::begin() {
  is_late_ = false;
  if (world_.goal) world_.goal->waits(self_ * world_.job.streams + stream_, world_.network.now());
  wake();
}

bool EngineThread::done() const { return !worker_ || (started_ && worker_->done()); }

void EngineThread::take(std::shared_ptr<const Letter> letter) {
  inbox_.push_back(std::move(letter));
  wake();
}

size_t EngineThread::accumulator_bytes() const {
  size_t numbers = 0;
  for (const auto& [key, node] : nodes_) numbers += node->aggregator.accumulator_bytes();
  return numbers / sizeof(Number) * world_.job.block_bytes;
}

void EngineThread::wake() {
  if (busy_) return;
  busy_ = true;
  world_.network.compute([this] { return work(); }, [this] { end_of_work(); });
}

// As GroupStream::work() after the transport's progress. Returns the processor seconds it takes;
// messages leave meanwhile.
double EngineThread::work() {
  spent_ = 0;
  if (worker_ && !is_late_ && worker_->inspected_blocks() == 0) pay(world_.costs.begin_s);
  const auto letters = std::exchange(inbox_, {});
  const uint32_t thread = self_ * world_.job.streams + stream_;
  if (world_.goal)
    for (const auto& letter : letters)
      world_.goal->takes(thread, letter->from, uint64_t(letter->bytes), letter->in_goal);
  for (const auto& letter : letters) {
    pay_for_message(letter->bytes);
    for (const Letter::Enclosed& one : letter->enclosed) {
      if (letter->is_result)
        hear(one.seat, one.parcel);
      else
        node_at(one.seat).aggregator.on_contribution(
            world_.seats.member_of(one.seat.level, letter->from), one.parcel->frame,
            node_at(one.seat));
    }
    pay_for_inspection();
  }
  if (worker_ && !is_late_ && !started_) start_slots();
  while (!own_results_.empty() || !released_.empty()) {
    for (const auto& [seat, of] : std::exchange(released_, {}))
      node_at(seat).aggregator.released(of.first, of.second, node_at(seat));
    for (const Letter::Enclosed& one : std::exchange(own_results_, {})) hear(one.seat, one.parcel);
  }
  pay_for_inspection();
  // Starts with the next ranks, so that not all threads send to the same one.
  auto last = std::exchange(open_, {});
  const auto next = last.lower_bound({self_, false});
  for (auto at = next; at != last.end(); ++at) send(at->first.first, std::move(at->second));
  for (auto at = last.begin(); at != next; ++at) send(at->first.first, std::move(at->second));
  if (world_.goal) world_.goal->ends(thread, spent_);
  return spent_;
}

void EngineThread::end_of_work() {
  busy_ = false;
  if (worker_ && done() && !std::exchange(is_told_, true))
    world_.outcome.done_s[self_] = world_.network.now();  // the last thread's is kept
  if (!inbox_.empty() || (worker_ && !is_late_ && !started_)) wake();
}

void EngineThread::pay_for_inspection() {
  if (!worker_) return;
  const uint64_t now = worker_->inspected_blocks();
  pay(double(now - std::exchange(inspected_, now)) * world_.job.block_bytes *
      world_.costs.inspected_s);
}

void EngineThread::start_slots() {
  const size_t more = std::max<size_t>(
      1,
      (world_.top() > 1 ? world_.seats.members(1, self_) : world_.layout.shape().aggregators) / 4);
  const uint64_t end = worker_->inspected_blocks() + more * kInspectAtOnce / world_.job.block_bytes;
  size_t bytes = 0;
  uint32_t share = 0;
  while (bytes < more * Message::kFull / 2 && worker_->inspected_blocks() < end) {
    if (!worker_->start(&share, &reply_)) {
      started_ = true;
      return;
    }
    pay_for_inspection();
    contribute({1, share}, world_.seats.member_of(1, self_), reply_);
    bytes += reply_.blocks.size() * world_.job.block_bytes;
  }
}

// Sends a contribution of our worker, or of our aggregator one level below, to the aggregator with
// this role.
void EngineThread::contribute(const Seat& seat, uint32_t member, const Frame& frame) {
  const uint32_t host = world_.seats.host(seat, self_);
  if (host == self_) {
    Node& node = node_at(seat);
    node.aggregator.on_contribution(member, frame, node);
    return;
  }
  double bytes;
  auto parcel = parcel_of(frame, seat, &bytes);
  put(host, false, seat, std::move(parcel), bytes);
}

// Handles a result of the parent aggregator with this role.
void EngineThread::hear(const Seat& seat, const std::shared_ptr<const Parcel>& parcel) {
  if (seat.level > 1) {
    Node& below = node_at({seat.level - 1, seat.share});
    below.aggregator.on_result(parcel->frame);
    spread(below, parcel);
  } else if (worker_->on_result(seat.share, parcel->frame, &reply_)) {
    contribute(seat, world_.seats.member_of(1, self_), reply_);
  }
}

// Sends a result to all members.
void EngineThread::spread(const Node& node, const std::shared_ptr<const Parcel>& parcel) {
  encoded_.encode(parcel->frame, world_.layout, node.seat.share,
                  world_.seats.number_in_frames(node.seat));
  const double bytes = world_.real_bytes(parcel->frame, encoded_.size());
  for (uint32_t m = 0; m < node.members; ++m) {
    const uint32_t to = world_.seats.host_of_member(node.seat, self_, m);
    if (to == self_)
      own_results_.push_back({node.seat, parcel});
    else
      put(to, true, node.seat, parcel, bytes);
  }
}

EngineThread::Node& EngineThread::node_at(const Seat& seat) { return *nodes_.at(key_of(seat)); }

std::shared_ptr<const Parcel> EngineThread::parcel_of(const Frame& frame, const Seat& seat,
                                                      double* bytes) {
  encoded_.encode(frame, world_.layout, seat.share, world_.seats.number_in_frames(seat));
  *bytes = world_.real_bytes(frame, encoded_.size());
  auto parcel = std::make_shared<Parcel>();
  parcel->frame = frame;
  parcel->numbers.resize(frame.blocks.size());
  for (size_t i = 0; i < frame.blocks.size(); ++i)
    std::memcpy(&parcel->numbers[i], frame.blocks[i].data, sizeof(Number));
  refer(*parcel);
  return parcel;
}

// The last message to each process stays open until it is full.
void EngineThread::put(uint32_t to, bool is_result, const Seat& seat,
                       std::shared_ptr<const Parcel> parcel, double bytes) {
  std::shared_ptr<Letter>& letter = open_[{to, is_result}];
  if (letter && letter->bytes + bytes > double(Message::kFull))
    send(to, std::exchange(letter, nullptr));
  if (!letter) {
    letter = std::make_shared<Letter>();
    letter->from = self_;
    letter->is_result = is_result;
  }
  world_.outcome.frames += 1;
  letter->bytes += bytes;
  letter->enclosed.push_back({seat, std::move(parcel)});
}

void EngineThread::send(uint32_t to, std::shared_ptr<Letter> letter) {
  const double bytes = letter->bytes;
  pay_for_message(bytes);
  peers_.insert(to);
  world_.outcome.messages += 1;
  const uint32_t streams = world_.job.streams, thread = to * streams + stream_;
  if (world_.goal)
    letter->in_goal = world_.goal->sends(self_ * streams + stream_, to, uint64_t(bytes), spent_);
  Network::Arrived arrived = [peer = all_[thread].get(), sent = std::move(letter)] {
    peer->take(sent);
  };
  world_.network.at(world_.network.now() + spent_, [this, to, thread, bytes,
                                                    then = std::move(arrived)]() mutable {
    if (world_.datagrams)
      world_.datagrams->send(self_ * world_.job.streams + stream_, thread, bytes, std::move(then));
    else
      world_.network.send(self_, to, bytes, std::move(then));
  });
}

}  // namespace omnihvd::simulation
