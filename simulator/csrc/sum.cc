#include "simulator/csrc/sum.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "protocol/frame_bytes.h"
#include "protocol/router.h"
#include "protocol/wire.h"
#include "simulator/csrc/datagrams.h"
#include "simulator/csrc/goal.h"

namespace omnihvd::simulation {
namespace {

using Number = int32_t;  // stands for a block: how many ranks have it
constexpr Number kOne = 1;
constexpr uint64_t kSequence = 1;

void check(const Job& job, const Costs& costs, uint64_t blocks) {
  if (!(job.loss >= 0 && job.loss < 1)) throw Error("a loss is a share from 0 to less than 1");
  if (job.has.size() != 1 && job.has.size() != job.workers)
    throw Error("which blocks are not zero must be said of each rank, or of all at once");
  for (const auto& has : job.has)
    if (has.size() != blocks)
      throw Error("the tensor has " + std::to_string(blocks) + " blocks, not " +
                  std::to_string(has.size()));
  if (job.goal && (job.loss > 0 || costs.cores > 0 || costs.core_rate > 0))
    throw Error(
        "a schedule in GOAL knows neither lost datagrams, nor a core of the network, nor "
        "processors that hosts share");
}

// The tensor's shape, with blocks of one number.
Shape shape_of(const Job& job) {
  const uint64_t count = (job.bytes + 3) / 4;
  Shape shape =
      Shape::fit(count, DType::f32, job.block_bytes / 4, job.shares, job.slots, job.message_bytes);
  shape.count = shape.blocks();
  shape.dtype = DType::i32;
  shape.block_size = 1;
  return shape;
}

// The state that all progress threads share.
struct World {
  World(const Job& j, const Costs& c, const Layout& l)
      : job(j),
        costs(c),
        layout(l),
        seats(j.workers, j.dedicated, j.fans),
        network(c, j.workers + j.dedicated, j.streams),
        expected(l.blocks()) {
    if (j.goal) goal.emplace(hosts(), j.streams);
    if (j.loss > 0) datagrams.emplace(network, c, j.loss, j.streams);
  }
  uint32_t hosts() const { return job.workers + job.dedicated; }
  const std::vector<bool>& has(uint32_t worker) const {
    return job.has.size() == 1 ? job.has[0] : job.has[worker];
  }

  const Job& job;
  const Costs& costs;
  const Layout layout;
  const Seats seats;
  Network network;
  std::optional<Datagrams> datagrams;  // where some are lost
  std::vector<Number> expected;        // [block]: how many workers have it
  std::optional<Goal> goal;            // where it is asked for
  Outcome outcome;
  uint64_t written = 0;  // blocks of sums, on all ranks
};

struct Letter {  // a message
  struct Enclosed {
    Seat seat;  // the role of the receiving or sending aggregator
    Router::Kept frame;
  };
  uint32_t from = 0;
  bool is_result = false;
  double bytes = kHeaderBytes;
  uint64_t in_goal = 0;
  std::vector<Enclosed> enclosed;
};

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

// A tensor of ones that verifies what is written.
class Ones : public Tensor {
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

// A progress thread of a simulated process, with its slots of the sum: the engine's Router over the
// simulated network. It takes all messages that have arrived, starts some slots, and sends each
// other process its frames together, in messages of at most Message::kFull.
class EngineThread : private Router::Driver {
 public:
  // self: its host. all: the threads of all hosts, [host * streams + stream], filled after this
  // call.
  EngineThread(World& world, std::vector<std::unique_ptr<EngineThread>>& all, uint32_t self,
               uint32_t stream)
      : world_(world),
        job_(world.job),
        all_(all),
        self_(self),
        stream_(stream),
        router_(*this, world.seats, self, stream, world.job.streams, false) {
    if (self >= job_.workers) return;
    worker_ = std::make_shared<Router::WorkerPart>(
        router_, kSequence, std::shared_ptr<const Layout>(std::shared_ptr<void>(), &world.layout),
        std::make_unique<Ones>(world, world.has(self)), job_.scan_ahead);
    worker_->block_bytes = job_.block_bytes;
    router_.add(worker_);
  }

  void begin() {
    is_late_ = false;
    if (world_.goal) world_.goal->waits(number(), world_.network.now());
    wake();
  }

  bool done() const { return !worker_ || worker_->done(); }
  size_t peers() const { return peers_.size(); }  // processes to which it has sent

 private:
  uint32_t number() const { return self_ * job_.streams + stream_; }
  bool starts() const { return worker_ && !is_late_ && !worker_->started; }
  void pay(double seconds) { spent_ += seconds; }
  void pay_for_message(double bytes) { pay(world_.costs.message_s + bytes * world_.costs.byte_s); }
  void pay_for_inspection() {
    if (!worker_) return;
    const uint64_t now = worker_->worker.inspected_blocks();
    pay(double(now - std::exchange(inspected_, now)) * job_.block_bytes * world_.costs.inspected_s);
  }

  void take(std::shared_ptr<const Letter> letter) {
    inbox_.push_back(std::move(letter));
    wake();
  }

  void wake() {
    if (busy_) return;
    busy_ = true;
    world_.network.compute([this] { return work(); }, [this] { end_of_work(); });
  }

  // As the loop of engine/stream.cc. Returns the processor seconds it takes; messages leave
  // meanwhile.
  double work() {
    spent_ = 0;
    if (worker_ && !is_late_ && worker_->worker.inspected_blocks() == 0) pay(world_.costs.begin_s);
    const auto letters = std::exchange(inbox_, {});
    if (world_.goal)
      for (const auto& letter : letters)
        world_.goal->takes(number(), letter->from, uint64_t(letter->bytes), letter->in_goal);
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
    if (world_.goal) world_.goal->ends(number(), spent_);
    return spent_;
  }

  void end_of_work() {
    busy_ = false;
    if (worker_ && done() && !std::exchange(is_told_, true))
      world_.outcome.done_s[self_] = world_.network.now();  // the last thread's is kept
    if (!inbox_.empty() || starts()) wake();
  }

  // The bytes of a frame with blocks as large as the job's.
  double encode(const Frame& frame, const Seat& seat) {
    encoded_.encode(frame, world_.layout, seat.share, world_.seats.number_in_frames(seat));
    return double(encoded_.size()) +
           double(frame.blocks.size()) * (job_.block_bytes - sizeof(Number));
  }

  // The last message to each process stays open until it is full.
  void put(uint32_t to, bool is_result, const Seat& seat, Router::Kept frame, double bytes) {
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

  void send(uint32_t to, std::shared_ptr<Letter> letter) {
    const double bytes = letter->bytes;
    pay_for_message(bytes);
    peers_.insert(to);
    world_.outcome.messages += 1;
    const uint32_t thread = to * job_.streams + stream_;
    if (world_.goal) letter->in_goal = world_.goal->sends(number(), to, uint64_t(bytes), spent_);
    Network::Arrived arrived = [peer = all_[thread].get(), sent = std::move(letter)] {
      peer->take(sent);
    };
    world_.network.at(world_.network.now() + spent_,
                      [this, to, thread, bytes, then = std::move(arrived)]() mutable {
                        if (world_.datagrams)
                          world_.datagrams->send(number(), thread, bytes, std::move(then));
                        else
                          world_.network.send(self_, to, bytes, std::move(then));
                      });
  }

  // The Router's driver.

  void send_up(uint32_t node, uint64_t, const Layout&, const Seat& seat, const Frame& frame,
               const Router::Kept& kept) override {
    put(node, false, seat, kept ? kept : parcel_of(frame), encode(frame, seat));
  }

  void send_down(const std::vector<uint32_t>& nodes, const Router::AggregatorPart& part,
                 const Router::Kept& result) override {
    const double bytes = encode(*result, part.seat);
    for (const uint32_t node : nodes) put(node, true, part.seat, result, bytes);
  }

  std::shared_ptr<Router::AggregatorPart> begin(uint64_t sequence, const Seat& seat,
                                                const Shape& shape, uint32_t) override {
    return std::make_shared<Router::AggregatorPart>(router_, sequence, seat, shape);
  }

  void disagree(const Router::AggregatorPart&, const Shape&, uint32_t) override {
    throw Error("simulated: the ranks disagree about a sum");
  }

  // Messages have copies, so the aggregator's memory is free at once.
  Router::Kept keep(Router::AggregatorPart& part, const Frame& frame) override {
    router_.release(part, frame.slot, frame.round);
    return parcel_of(frame);
  }

  Router::Kept pass_on(const Router::AggregatorPart&, const Frame&,
                       const Router::Kept& arrived) override {
    return arrived;
  }

  // A slot's first contribution is sent once its blocks are inspected.
  void contributes(Router::WorkerPart&, uint32_t, const Frame&) override {
    if (starting_) pay_for_inspection();
  }

  World& world_;
  const Job& job_;
  std::vector<std::unique_ptr<EngineThread>>& all_;
  const uint32_t self_, stream_;
  Router router_;
  std::shared_ptr<Router::WorkerPart> worker_;  // null: a dedicated aggregator
  bool busy_ = false, starting_ = false, is_late_ = true, is_told_ = false;
  double spent_ = 0;        // processor seconds of the current work
  uint64_t inspected_ = 0;  // blocks already charged
  FrameBytes encoded_;
  std::vector<std::shared_ptr<const Letter>> inbox_;
  std::map<std::pair<uint32_t, bool>, std::shared_ptr<Letter>> open_;  // being filled
  std::set<uint32_t> peers_;
};

}  // namespace

Outcome simulate(const Job& job, const Costs& costs, const Progress& progress) {
  const Layout layout(shape_of(job));
  check(job, costs, layout.blocks());
  World world(job, costs, layout);
  for (uint32_t worker = 0; worker < job.workers; ++worker)
    for (uint64_t block = 0; block < world.expected.size(); ++block)
      world.expected[block] += world.has(worker)[block];
  for (const Number ranks : world.expected) world.outcome.union_blocks += ranks > 0;
  const uint64_t to_write = std::max<uint64_t>(1, world.outcome.union_blocks * job.workers);
  world.outcome.done_s.assign(job.workers, 0);
  std::vector<std::unique_ptr<EngineThread>> all;
  for (uint32_t host = 0; host < world.hosts(); ++host)
    for (uint32_t stream = 0; stream < job.streams; ++stream)
      all.push_back(std::make_unique<EngineThread>(world, all, host, stream));
  for (uint32_t thread = 0; thread < job.workers * job.streams; ++thread)
    world.network.at(thread / job.streams + 1 == job.workers ? job.late_s : 0,
                     [begun = all[thread].get()] { begun->begin(); });
  Outcome& outcome = world.outcome;
  outcome.events = world.network.run([&] { progress(double(world.written) / double(to_write)); });
  for (uint32_t thread = 0; thread < all.size(); ++thread)
    if (!all[thread]->done())
      throw Error("simulated: rank " + std::to_string(thread / job.streams) + " waits for ever");
  outcome.seconds = *std::max_element(outcome.done_s.begin(), outcome.done_s.end());
  if (world.datagrams) {
    outcome.datagrams = world.datagrams->sent();
    outcome.again = world.datagrams->again();
  }
  for (uint32_t host = 0; host < world.hosts(); ++host) {
    outcome.bytes += world.network.sent_bytes(host);
    outcome.most_bytes = std::max(outcome.most_bytes, world.network.sent_bytes(host));
  }
  for (const auto& thread : all)
    outcome.most_peers = std::max(outcome.most_peers, uint32_t(thread->peers()));
  if (world.goal) outcome.goal = world.goal->text();
  return outcome;
}

}  // namespace omnihvd::simulation
