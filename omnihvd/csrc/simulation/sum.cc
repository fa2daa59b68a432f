#include "simulation/sum.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "protocol/aggregator.h"
#include "protocol/frame_bytes.h"
#include "protocol/wire.h"
#include "protocol/worker.h"
#include "simulation/datagrams.h"

namespace omnihvd::simulation {
namespace {

using Number = int32_t;
constexpr size_t kInspectAtOnce = 4 << 20;  // bytes, as in session/group_stream.cc
constexpr Number kOne = 1;

// A frame on its way: refers to numbers of its own, as its sender's memory may change.
struct Parcel {
  Frame frame;
  std::vector<Number> numbers;
};

struct Letter {  // a message
  uint32_t from = 0;
  bool is_result = false;
  double bytes = kHeaderBytes;
  std::vector<std::shared_ptr<const Parcel>> parcels;
};

// What the whole job shares, and who sends for whom.
struct World {
  const Job& job;
  const Costs& costs;
  const Layout layout;
  Network network;
  std::optional<Datagrams> datagrams;  // where some are lost
  std::vector<Number> expected;        // [block]: how many workers have it
  Outcome outcome;

  World(const Job& j, const Costs& c, const Layout& l)
      : job(j),
        costs(c),
        layout(l),
        network(c, j.workers + j.dedicated, j.streams),
        expected(l.blocks()) {
    if (j.loss > 0) datagrams.emplace(network, c, j.loss, j.seed, j.streams);
  }
  uint32_t aggregators() const { return job.dedicated ? job.dedicated : job.workers; }
  uint32_t host_of(uint32_t aggregator) const {
    return job.dedicated ? job.workers + aggregator : aggregator;
  }
  double real_bytes(const Frame& frame, size_t encoded) const {
    return double(encoded) + double(frame.blocks.size()) * (job.block_bytes - sizeof(Number));
  }
};

// Has ones, and verifies what is written.
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

// An engine thread.
class Thread : private Aggregator::Sink {
 public:
  Thread(World& world, std::vector<std::unique_ptr<Thread>>& all, uint32_t self, uint32_t stream)
      : world_(world), all_(all), self_(self), stream_(stream) {
    const Job& job = world.job;
    if (self >= job.workers || !job.dedicated) {
      index_ = job.dedicated ? self - job.workers : self;
      aggregator_.emplace(world.layout, *index_, job.workers, stream, job.streams, false);
    }
    if (self >= job.workers) return;
    tensor_.emplace(world, job.has.size() == 1 ? job.has[0] : job.has[self]);
    worker_.emplace(world.layout, *tensor_, job.scan_ahead, stream, job.streams);
  }

  void begin() {
    is_late_ = false;
    wake();
  }
  bool done() const { return !worker_ || (started_ && worker_->done()); }
  void take(std::shared_ptr<const Letter> letter) {
    inbox_.push_back(std::move(letter));
    wake();
  }

 private:
  void wake() {
    if (busy_) return;
    busy_ = true;
    world_.network.compute([this] { return work(); }, [this] { end_of_work(); });
  }

  // As GroupStream::work() after the transport's progress; returns its processor seconds.
  double work() {
    const Costs& costs = world_.costs;
    const uint64_t before = worker_ ? worker_->inspected_blocks() : 0;
    double seconds = worker_ && before == 0 && !is_late_ ? costs.begin_s : 0;
    const auto letters = std::exchange(inbox_, {});
    for (const auto& letter : letters) {
      seconds += costs.message_s + letter->bytes * costs.byte_s;
      for (const auto& parcel : letter->parcels) take(letter->from, letter->is_result, *parcel);
    }
    if (worker_ && !is_late_ && !started_) start_slots();
    while (!own_results_.empty() || !released_.empty()) {
      for (const auto& [slot, round] : std::exchange(released_, {}))
        aggregator_->released(slot, round, *this);
      for (const Parcel& parcel : std::exchange(own_results_, {})) hear(*index_, parcel.frame);
    }
    for (const auto& [to, letter] : outbox_)
      seconds += costs.message_s + letter->bytes * costs.byte_s;
    if (worker_)
      seconds +=
          double(worker_->inspected_blocks() - before) * world_.job.block_bytes * costs.inspected_s;
    return seconds;
  }

  void end_of_work() {
    busy_ = false;
    for (auto& [to, letter] : std::exchange(outbox_, {})) send(to, std::move(letter));
    open_.clear();
    if (worker_ && done() && !std::exchange(is_told_, true))
      world_.outcome.done_s[self_] = world_.network.now();  // of the last stream, in the end
    if (!inbox_.empty() || (worker_ && !is_late_ && !started_)) wake();
  }

  void send(uint32_t to, std::shared_ptr<Letter> letter) {
    world_.outcome.messages += 1;
    world_.outcome.frames += letter->parcels.size();
    const double bytes = letter->bytes;
    const uint32_t streams = world_.job.streams, thread = to * streams + stream_;
    Network::Arrived arrived = [peer = all_[thread].get(), sent = std::move(letter)] {
      peer->take(sent);
    };
    if (world_.datagrams)
      world_.datagrams->send(self_ * streams + stream_, thread, bytes, std::move(arrived));
    else
      world_.network.send(self_, to, bytes, std::move(arrived));
  }

  void take(uint32_t from, bool is_result, const Parcel& parcel) {
    if (is_result)
      hear(world_.job.dedicated ? from - world_.job.workers : from, parcel.frame);
    else
      aggregator_->on_contribution(from, parcel.frame, *this);
  }

  void hear(uint32_t aggregator, const Frame& frame) {
    if (worker_->on_result(aggregator, frame, &reply_)) contribute(aggregator, reply_);
  }

  void start_slots() {
    const uint64_t end = worker_->inspected_blocks() + kInspectAtOnce / world_.job.block_bytes;
    size_t bytes = 0;
    uint32_t aggregator = 0;
    while (bytes < Message::kFull / 2 && worker_->inspected_blocks() < end) {
      if (!worker_->start(&aggregator, &reply_)) {
        started_ = true;
        return;
      }
      contribute(aggregator, reply_);
      bytes += reply_.blocks.size() * world_.job.block_bytes;
    }
  }

  void contribute(uint32_t aggregator, const Frame& frame) {
    if (index_ == aggregator) {
      aggregator_->on_contribution(self_, frame, *this);
      return;
    }
    encoded_.encode(frame, world_.layout, aggregator);
    put(world_.host_of(aggregator), false, parcel_of(frame),
        world_.real_bytes(frame, encoded_.size()));
  }

  void result(const Frame& frame) override {
    encoded_.encode(frame, world_.layout, *index_);
    const double bytes = world_.real_bytes(frame, encoded_.size());
    const auto parcel = parcel_of(frame);
    for (uint32_t worker = 0; worker < world_.job.workers; ++worker) {
      if (worker == self_)
        own_results_.push_back(*parcel), refer(own_results_.back());
      else
        put(worker, true, parcel, bytes);
    }
    released_.push_back({frame.slot, frame.round});
  }

  // The last letter to each process is open until it is full.
  void put(uint32_t to, bool is_result, std::shared_ptr<const Parcel> parcel, double bytes) {
    const auto key = std::make_pair(to, is_result);
    auto open = open_.find(key);
    if (open == open_.end() || open->second->bytes + bytes > double(Message::kFull)) {
      auto letter = std::make_shared<Letter>();
      letter->from = self_;
      letter->is_result = is_result;
      outbox_.push_back({to, letter});
      open = open_.insert_or_assign(key, std::move(letter)).first;
    }
    open->second->bytes += bytes;
    open->second->parcels.push_back(std::move(parcel));
  }

  static void refer(Parcel& parcel) {
    for (size_t i = 0; i < parcel.numbers.size(); ++i)
      parcel.frame.blocks[i].data = reinterpret_cast<const uint8_t*>(&parcel.numbers[i]);
  }

  static std::shared_ptr<const Parcel> parcel_of(const Frame& frame) {
    auto parcel = std::make_shared<Parcel>();
    parcel->frame = frame;
    parcel->numbers.resize(frame.blocks.size());
    for (size_t i = 0; i < frame.blocks.size(); ++i)
      std::memcpy(&parcel->numbers[i], frame.blocks[i].data, sizeof(Number));
    refer(*parcel);
    return parcel;
  }

  World& world_;
  std::vector<std::unique_ptr<Thread>>& all_;
  const uint32_t self_, stream_;
  std::optional<uint32_t> index_;  // of its aggregator
  std::optional<Aggregator> aggregator_;
  std::optional<Ones> tensor_;
  std::optional<Worker> worker_;
  bool busy_ = false, started_ = false, is_late_ = true, is_told_ = false;
  Frame reply_;
  FrameBytes encoded_;
  std::vector<std::shared_ptr<const Letter>> inbox_;
  std::vector<std::pair<uint32_t, std::shared_ptr<Letter>>> outbox_;
  std::map<std::pair<uint32_t, bool>, std::shared_ptr<Letter>> open_;
  std::deque<Parcel> own_results_;
  std::vector<std::pair<uint32_t, uint32_t>> released_;  // slot, round
};

void check(const Job& job, uint64_t blocks) {
  if (job.workers == 0) throw Error("a job has at least one rank");
  if (job.streams == 0) throw Error("an engine has at least one thread");
  if (!(job.loss >= 0 && job.loss < 1)) throw Error("a loss is a share from 0 to less than 1");
  if (job.bytes == 0) throw Error("a tensor has at least one byte");
  if (job.has.size() != 1 && job.has.size() != job.workers)
    throw Error("which blocks are not zero must be said of each rank, or of all at once");
  for (const auto& has : job.has)
    if (has.size() != blocks)
      throw Error("the tensor has " + std::to_string(blocks) + " blocks, not " +
                  std::to_string(has.size()));
  if (!job.late_s.empty() && job.late_s.size() != job.workers)
    throw Error("when it begins must be said of each rank, or of none");
}

// That of the tensor, with blocks of one number.
Shape shape_of(const Job& job) {
  const uint64_t count = (job.bytes + 3) / 4;
  const uint32_t aggregators = job.dedicated ? job.dedicated : job.workers;
  Shape shape =
      Shape::fit(count, DType::f32, job.block_bytes / 4, aggregators, job.slots, job.message_bytes);
  shape.count = shape.blocks();
  shape.dtype = DType::i32;
  shape.block_size = 1;
  return shape;
}

}  // namespace

Outcome simulate(const Job& job, const Costs& costs, const std::function<void()>& tick) {
  const Layout layout(shape_of(job));
  check(job, layout.blocks());
  World world(job, costs, layout);
  for (uint32_t worker = 0; worker < job.workers; ++worker) {
    const auto& has = job.has.size() == 1 ? job.has[0] : job.has[worker];
    for (uint64_t block = 0; block < has.size(); ++block) world.expected[block] += has[block];
  }
  world.outcome.done_s.assign(job.workers, 0);
  const uint32_t hosts = job.workers + job.dedicated;
  std::vector<std::unique_ptr<Thread>> all;
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t stream = 0; stream < job.streams; ++stream)
      all.push_back(std::make_unique<Thread>(world, all, host, stream));
  for (uint32_t thread = 0; thread < job.workers * job.streams; ++thread)
    world.network.at(job.late_s.empty() ? 0 : job.late_s[thread / job.streams],
                     [begun = all[thread].get()] { begun->begin(); });
  Outcome& outcome = world.outcome;
  outcome.events = world.network.run(tick);
  for (uint32_t thread = 0; thread < all.size(); ++thread)
    if (!all[thread]->done())
      throw Error("simulated: rank " + std::to_string(thread / job.streams) + " waits for ever");
  outcome.seconds = *std::max_element(outcome.done_s.begin(), outcome.done_s.end());
  if (world.datagrams) {
    outcome.datagrams = world.datagrams->sent();
    outcome.again = world.datagrams->again();
  }
  for (uint32_t host = 0; host < hosts; ++host) {
    outcome.bytes += world.network.sent_bytes(host);
    outcome.most_bytes = std::max(outcome.most_bytes, world.network.sent_bytes(host));
  }
  outcome.most_peers = job.dedicated ? std::max(job.workers, job.dedicated) : job.workers - 1;
  for (const Number ranks : world.expected) outcome.union_blocks += ranks > 0;
  return outcome;
}

}  // namespace omnihvd::simulation
