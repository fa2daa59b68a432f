#include "simulator/csrc/bad_job.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "protocol/aggregator.h"
#include "protocol/tensor.h"
#include "protocol/wire.h"
#include "protocol/worker.h"
#include "simulator/csrc/bad_job_plan.h"
#include "simulator/csrc/bad_rare_paths.h"

namespace omnihvd::simulation {
namespace {

using Bytes = BadNetwork::Bytes;
constexpr uint64_t kLongest = 3'600'000'000;  // microseconds: more than any time-outs in a row
constexpr uint64_t kHopeless = 60'000'000;    // for sums that some ranks can still finish
constexpr uint64_t kMostEvents = 20'000'000;

// The role of an aggregator in a sum, or of a worker (level 0, share 0).
using Place = std::tuple<uint32_t, uint32_t, uint32_t>;  // sum, level, share

class Run;

struct Node : Aggregator::Sink {
  Node(Run& of, uint32_t on, uint32_t number, uint32_t at_level, uint32_t of_share);
  void result(const Frame& frame) override;
  void contribution(const Frame& frame) override;

  Run& run;
  const uint32_t host, sum, level, share, group, members;
  Aggregator aggregator;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> lent;  // messages of a slot's round
};

struct Rank {
  Rank(const SumPlan& plan, uint32_t rank)
      : layout(plan.shape),
        given(plan.input(rank)),
        taken(plan.in_place ? Bytes() : Bytes(given.size(), 0xA5)),
        tensor(layout, given.data(), plan.in_place ? given.data() : taken.data(), rank),
        worker(layout, tensor, plan.scan_ahead, 0, 1) {}
  const Layout layout;
  Bytes given, taken;
  HostTensor tensor;
  Worker worker;
  bool begun = false, told = false;
};

class Run {
 public:
  explicit Run(uint64_t seed)
      : dice_(seed),
        plan_(make_plan(dice_)),
        tree_(plan_.ranks, plan_.fans),
        network_(
            plan_.ranks, plan_.faults, dice_,
            [this](uint32_t to, uint32_t from, const Bytes& bytes) { take(to, from, bytes); },
            [this](uint32_t, uint64_t name) { sent(name); }),
        rare_(dice_, plan_.rare) {
    for (uint32_t rank = 0; rank < plan_.ranks; ++rank) all_ranks_.push_back(rank);
  }

  BadOutcome run();
  const Plan& plan() const { return plan_; }
  const Tree& tree() const { return tree_; }

  void say(uint32_t from, uint32_t to, Kind kind, uint32_t sum, uint32_t level, uint32_t share,
           uint32_t member, const Frame& frame, Node* lender);

 private:
  struct Outgoing {
    Message message;
    Bytes bytes;
    Node* lender;  // null: a worker, which may reuse its tensor once its result has come
    uint32_t slot, round;
  };

  void begin(uint32_t rank, uint32_t sum);
  void take(uint32_t host, uint32_t from, const Bytes& bytes);
  void on_contribution(uint32_t host, MessageReader& reader);
  void on_result(uint32_t host, MessageReader& reader, const Bytes& bytes);
  void sent(uint64_t name);
  void deliver(uint32_t from, uint32_t to, uint64_t name, Bytes bytes);
  void spread(const Node& node, const Bytes& bytes);
  Node& node_at(uint32_t host, const Place& place);
  void check(uint32_t rank, uint32_t sum);
  bool all_done() const;

  Dice dice_;
  const Plan plan_;
  const Tree tree_;
  BadNetwork network_;
  BadRarePaths rare_;
  std::vector<uint32_t> all_ranks_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Rank>> ranks_;  // rank, sum
  std::map<std::pair<uint32_t, Place>, std::unique_ptr<Node>> nodes_;     // host
  std::map<uint64_t, std::unique_ptr<Outgoing>> under_way_;
  uint64_t named_ = 0, messages_ = 0, right_ = 0;
  Frame frame_, reply_;
};

Node::Node(Run& of, uint32_t on, uint32_t number, uint32_t at_level, uint32_t of_share)
    : run(of),
      host(on),
      sum(number),
      level(at_level),
      share(of_share),
      group(of.tree().group_of(level, host)),
      members(of.tree().members(level, group)),
      aggregator(of.plan().sums[sum].layout(), share, members, 0, 1, of.plan().sums[sum].ordered,
                 level < of.tree().levels() ? std::optional(kSums - level) : std::nullopt) {}

void Node::result(const Frame& frame) {
  for (uint32_t m = 0; m < members; ++m)
    run.say(host, run.tree().host_of_member(level, group, m, share), Kind::result, sum, level,
            share, share, frame, this);
}

void Node::contribution(const Frame& frame) {
  run.say(host, run.tree().host(level + 1, run.tree().group_of(level + 1, host), share),
          Kind::contribution, sum, level + 1, share, run.tree().member_of(level + 1, host), frame,
          this);
}

BadOutcome Run::run() {
  const RarePaths::Asked asked(&rare_);
  for (uint32_t sum = 0; sum < plan_.sums.size(); ++sum)
    for (uint32_t rank = 0; rank < plan_.ranks; ++rank)
      network_.at(plan_.sums[sum].begins_us[rank], rank, [this, rank, sum] { begin(rank, sum); });
  uint64_t events = 0;
  const uint64_t longest = plan_.hopeless ? kHopeless : kLongest;
  while (!all_done() && network_.now() < longest && network_.step())
    if (++events > kMostEvents) throw Error("it goes on for ever");
  BadOutcome outcome;
  outcome.sums = right_;
  outcome.unfinished = plan_.sums.size() * plan_.ranks - right_;
  if (outcome.unfinished > 0 && !plan_.hopeless)
    throw Error(std::to_string(outcome.unfinished) + " sums are not there in the end");
  outcome.counts = named(network_.counts());
  outcome.counts["rare"] = rare_.rare_so_far;
  outcome.events = events;
  outcome.messages = messages_;
  outcome.seconds = double(network_.now()) * 1e-6;
  return outcome;
}

bool Run::all_done() const { return right_ == plan_.sums.size() * plan_.ranks; }

void Run::begin(uint32_t rank, uint32_t sum) {
  std::unique_ptr<Rank>& own = ranks_[{rank, sum}];
  if (!own) own = std::make_unique<Rank>(plan_.sums[sum], rank);
  uint32_t share;
  const uint32_t group = tree_.group_of(1, rank);
  for (uint32_t slots = 0; slots < plan_.sums[sum].slots_at_once; ++slots) {
    if (!own->worker.start(&share, &reply_)) {
      own->begun = true;
      check(rank, sum);
      return;
    }
    say(rank, tree_.host(1, group, share), Kind::contribution, sum, 1, share,
        tree_.member_of(1, rank), reply_, nullptr);
  }
  network_.at(network_.now() + dice_.below(100), rank, [this, rank, sum] { begin(rank, sum); });
}

void Run::say(uint32_t from, uint32_t to, Kind kind, uint32_t sum, uint32_t level, uint32_t share,
              uint32_t member, const Frame& frame, Node* lender) {
  const SumPlan& plan = plan_.sums[sum];
  Header header;
  header.kind = kind;
  header.from = member;
  header.stream = uint16_t(share);
  header.group = level;
  header.sequence = sum + 1;
  auto out = std::make_unique<Outgoing>();
  out->message.begin(header,
                     kind == Kind::contribution && frame.round == 0 ? &plan.shape : nullptr);
  FrameBytes encoded;
  encoded.encode(frame, plan.layout(), share);
  out->message.add(encoded);
  out->message.finish(0);
  for (const Slice& slice : out->message.slices()) {
    const auto* data = static_cast<const uint8_t*>(slice.data);
    out->bytes.insert(out->bytes.end(), data, data + slice.size);
  }
  out->lender = lender;
  out->slot = frame.slot;
  out->round = frame.round;
  if (lender) ++lender->lent[{frame.slot, frame.round}];
  const uint64_t name = ++named_;
  Bytes bytes = out->bytes;
  under_way_.emplace(name, std::move(out));
  deliver(from, to, name, std::move(bytes));
}

void Run::deliver(uint32_t from, uint32_t to, uint64_t name, Bytes bytes) {
  ++messages_;
  if (from != to) return network_.send(from, to, name, std::move(bytes));
  network_.at(network_.now(), from, [this, from, name, own = std::move(bytes)] {
    take(from, from, own);
    sent(name);
  });
}

// The memory that a message referred to may be reused; until now it must not have changed.
void Run::sent(uint64_t name) {
  const auto found = under_way_.find(name);
  if (found == under_way_.end()) return;  // forwarded messages refer to nothing
  const std::unique_ptr<Outgoing> out = std::move(found->second);
  under_way_.erase(found);
  if (!out->lender) return;
  Bytes now;
  for (const Slice& slice : out->message.slices()) {
    const auto* data = static_cast<const uint8_t*>(slice.data);
    now.insert(now.end(), data, data + slice.size);
  }
  if (now != out->bytes) throw Error("memory was used again while its message was under way");
  if (--out->lender->lent.at({out->slot, out->round}) == 0)
    out->lender->aggregator.released(out->slot, out->round, *out->lender);
}

void Run::take(uint32_t host, uint32_t, const Bytes& bytes) {
  // Memory of exactly its size lets a sanitizer see reads beyond it.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  MessageReader reader(copy.get(), bytes.size());
  if (reader.header().kind == Kind::contribution)
    on_contribution(host, reader);
  else
    on_result(host, reader, bytes);
}

void Run::on_contribution(uint32_t host, MessageReader& reader) {
  const Header& header = reader.header();
  const auto sum = uint32_t(header.sequence - 1);
  Node& node = node_at(host, {sum, uint32_t(header.group), header.stream});
  if (reader.has_shape() && reader.shape() != plan_.sums[sum].shape)
    throw Error("a shape was changed on its way");
  const uint32_t member = header.from;
  const auto named = [&](uint32_t slot, uint32_t round) {
    return node.aggregator.named(member, slot, round);
  };
  Frame frame;
  while (reader.next(plan_.sums[sum].layout(), node.share, named, &frame))
    node.aggregator.on_contribution(member, frame, node);
  if (node.aggregator.accumulator_bytes() > plan_.sums[sum].most_accumulators())
    throw Error("an aggregator holds more than two windows a slot");
}

void Run::on_result(uint32_t host, MessageReader& reader, const Bytes& bytes) {
  const Header header = reader.header();
  const auto sum = uint32_t(header.sequence - 1);
  const auto level = uint32_t(header.group);
  const uint32_t share = header.from;
  Frame frame;
  if (level > 1) {
    Node& node = node_at(host, {sum, level - 1, share});
    while (reader.next(plan_.sums[sum].layout(), share, nullptr, &frame))
      node.aggregator.on_result(frame);
    spread(node, bytes);
    return;
  }
  Rank& own = *ranks_.at({host, sum});
  while (reader.next(own.layout, share, nullptr, &frame))
    if (own.worker.on_result(share, frame, &reply_))
      say(host, tree_.host(1, tree_.group_of(1, host), share), Kind::contribution, sum, 1, share,
          tree_.member_of(1, host), reply_, nullptr);
  check(host, sum);
}

// Forwards a parent's result to all members; only the level changes.
void Run::spread(const Node& node, const Bytes& bytes) {
  Header header = read_header(bytes.data(), bytes.size());
  Frame frame;
  for (uint32_t m = 0; m < node.members; ++m) {
    MessageReader reader(bytes.data(), bytes.size());
    while (reader.next(plan_.sums[node.sum].layout(), node.share, nullptr, &frame))
      say(node.host, tree_.host_of_member(node.level, node.group, m, node.share), header.kind,
          node.sum, node.level, node.share, node.share, frame, nullptr);
  }
}

Node& Run::node_at(uint32_t host, const Place& place) {
  std::unique_ptr<Node>& found = nodes_[{host, place}];
  if (!found) {
    const auto& [sum, level, share] = place;
    found = std::make_unique<Node>(*this, host, sum, level, share);
  }
  return *found;
}

void Run::check(uint32_t rank, uint32_t sum) {
  Rank& own = *ranks_.at({rank, sum});
  if (!own.begun || !own.worker.done() || std::exchange(own.told, true)) return;
  const SumPlan& plan = plan_.sums[sum];
  const Bytes& got = plan.in_place ? own.given : own.taken;
  if (got != plan.expected(all_ranks_))
    throw Error("rank " + std::to_string(rank) + " has a wrong sum " + std::to_string(sum));
  ++right_;
}

}  // namespace

std::map<std::string, uint64_t> named(const BadNetwork::Counts& counts) {
  return {{"datagrams", counts.datagrams}, {"lost", counts.lost},     {"twice", counts.twice},
          {"late", counts.late},           {"cut", counts.cut},       {"crashes", counts.crashes},
          {"jumps", counts.jumps},         {"pauses", counts.pauses}, {"partly", counts.partly}};
}

BadOutcome run_bad_job(uint64_t seed) {
  Run run(seed);
  try {
    BadOutcome outcome = run.run();
    outcome.job = run.plan().words();
    return outcome;
  } catch (const std::exception& why) {
    throw Error("seed " + std::to_string(seed) + ": " + why.what() + "; " + run.plan().words());
  }
}

}  // namespace omnihvd::simulation
