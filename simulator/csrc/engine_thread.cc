#include "simulator/csrc/engine_thread.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace omnihvd::simulation {
namespace {

constexpr Number kOne = 1;
constexpr uint64_t kSequence = 1;

// A frame with its own copy of the numbers, as its sender's memory may change.
struct Parcel {
  explicit Parcel(const Frame& of) : frame(of), numbers(of.blocks.size()) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      std::memcpy(&numbers[i], of.blocks[i].data, sizeof(Number));
      frame.blocks[i].data = reinterpret_cast<const uint8_t*>(&numbers[i]);
    }
  }
  Frame frame;
  std::vector<Number> numbers;
};

Router::Kept parcel_of(const Frame& frame) {
  const auto parcel = std::make_shared<const Parcel>(frame);
  return Router::Kept(parcel, &parcel->frame);
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

EngineThread::EngineThread(World& world, std::vector<std::unique_ptr<EngineThread>>& all,
                           uint32_t self, uint32_t stream)
    : world_(world),
      job_(world.job),
      all_(all),
      self_(self),
      stream_(stream),
      router_(*this, world.seats, self, stream, world.job.streams, false) {
  if (self >= job_.workers) return;
  worker_ = std::make_shared<Router::WorkerPart>(
      router_, kSequence, std::shared_ptr<const Layout>(std::shared_ptr<void>(), &world.layout),
      std::make_unique<Ones>(world, job_.has.size() == 1 ? job_.has[0] : job_.has[self]),
      job_.scan_ahead);
  worker_->block_bytes = job_.block_bytes;
  router_.add(worker_);
}

EngineThread::~EngineThread() = default;

void EngineThread::begin() {
  is_late_ = false;
  if (world_.goal) world_.goal->waits(self_ * job_.streams + stream_, world_.network.now());
  wake();
}

bool EngineThread::done() const { return !worker_ || worker_->done(); }

void EngineThread::take(std::shared_ptr<const Letter> letter) {
  inbox_.push_back(std::move(letter));
  wake();
}

void EngineThread::wake() {
  if (busy_) return;
  busy_ = true;
  world_.network.compute([this] { return work(); }, [this] { end_of_work(); });
}

// As the loop of engine/stream.cc. Returns the processor seconds it takes; messages leave
// meanwhile.
double EngineThread::work() {
  spent_ = 0;
  if (worker_ && !is_late_ && worker_->worker.inspected_blocks() == 0) pay(world_.costs.begin_s);
  const auto letters = std::exchange(inbox_, {});
  const uint32_t thread = self_ * job_.streams + stream_;
  if (world_.goal)
    for (const auto& letter : letters)
      world_.goal->takes(thread, letter->from, uint64_t(letter->bytes), letter->in_goal);
  const Shape& shape = world_.layout.shape();
  for (const auto& letter : letters) {
    pay_for_message(letter->bytes);
    for (const Letter::Enclosed& one : letter->enclosed) {
      if (letter->is_result)
        router_.on_result(kSequence, one.seat, *one.frame, one.frame);
      else
        router_.on_contribution(*router_.aggregator(kSequence, one.seat, &shape, letter->from),
                                letter->from, *one.frame);
    }
    pay_for_inspection();
  }
  if (starts()) {
    starting_ = true;
    router_.start_slots(*worker_);
    starting_ = false;
  }
  while (router_.work()) continue;
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
  if (!inbox_.empty() || starts()) wake();
}

void EngineThread::pay_for_inspection() {
  if (!worker_) return;
  const uint64_t now = worker_->worker.inspected_blocks();
  pay(double(now - std::exchange(inspected_, now)) * job_.block_bytes * world_.costs.inspected_s);
}

// A slot's first contribution is sent once its blocks are inspected.
void EngineThread::contributes(Router::WorkerPart&, uint32_t, const Frame&) {
  if (starting_) pay_for_inspection();
}

double EngineThread::encode(const Frame& frame, const Seat& seat) {
  encoded_.encode(frame, world_.layout, seat.share, world_.seats.number_in_frames(seat));
  return world_.real_bytes(frame, encoded_.size());
}

void EngineThread::send_up(uint32_t node, uint64_t, const Layout&, const Seat& seat,
                           const Frame& frame, const Router::Kept& kept) {
  put(node, false, seat, kept ? kept : parcel_of(frame), encode(frame, seat));
}

void EngineThread::send_down(const std::vector<uint32_t>& nodes, const Router::AggregatorPart& part,
                             const Router::Kept& result) {
  const double bytes = encode(*result, part.seat);
  for (const uint32_t node : nodes) put(node, true, part.seat, result, bytes);
}

std::shared_ptr<Router::AggregatorPart> EngineThread::begin(uint64_t sequence, const Seat& seat,
                                                            const Shape& shape, uint32_t) {
  return std::make_shared<Router::AggregatorPart>(router_, sequence, seat, shape);
}

void EngineThread::disagree(const Router::AggregatorPart&, const Shape&, uint32_t) {
  throw Error("simulated: the ranks disagree about a sum");
}

// Messages have copies, so the aggregator's memory is free at once.
Router::Kept EngineThread::keep(Router::AggregatorPart& part, const Frame& frame) {
  router_.release(part, frame.slot, frame.round);
  return parcel_of(frame);
}

Router::Kept EngineThread::pass_on(const Router::AggregatorPart&, const Frame&,
                                   const Router::Kept& arrived) {
  return arrived;
}

// The last message to each process stays open until it is full.
void EngineThread::put(uint32_t to, bool is_result, const Seat& seat, Router::Kept frame,
                       double bytes) {
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
  letter->enclosed.push_back({seat, std::move(frame)});
}

void EngineThread::send(uint32_t to, std::shared_ptr<Letter> letter) {
  const double bytes = letter->bytes;
  pay_for_message(bytes);
  peers_.insert(to);
  world_.outcome.messages += 1;
  const uint32_t streams = job_.streams, thread = to * streams + stream_;
  if (world_.goal)
    letter->in_goal = world_.goal->sends(self_ * streams + stream_, to, uint64_t(bytes), spent_);
  Network::Arrived arrived = [peer = all_[thread].get(), sent = std::move(letter)] {
    peer->take(sent);
  };
  world_.network.at(world_.network.now() + spent_, [this, to, thread, bytes,
                                                    then = std::move(arrived)]() mutable {
    if (world_.datagrams)
      world_.datagrams->send(self_ * job_.streams + stream_, thread, bytes, std::move(then));
    else
      world_.network.send(self_, to, bytes, std::move(then));
  });
}

}  // namespace omnihvd::simulation
