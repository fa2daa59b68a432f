#include "protocol/router.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/rare.h"
#include "numeric/block_ops.h"
#include "protocol/wire.h"

namespace omnihvd {
namespace {

struct Copied {
  Frame frame;
  std::vector<uint8_t> bytes;
};

[[noreturn]] void not_under_way(uint64_t sequence) {
  throw Error("a result for collective " + std::to_string(sequence) + ", which is not under way");
}

}  // namespace

// Keeps its aggregator's memory lent until nobody refers to the frame.
struct Router::Loan {
  Loan(AggregatorPart& of, const Frame& lent) : part(of.shared_from_this()), frame(lent) {}
  Loan(const Loan&) = delete;
  ~Loan() { part->router.release(*part, frame.slot, frame.round); }

  const std::shared_ptr<AggregatorPart> part;
  const Frame frame;
};

Router::AggregatorPart::AggregatorPart(Router& of, uint64_t sequence_number, const Seat& at,
                                       const Shape& shape)
    : router(of),
      sequence(sequence_number),
      seat(at),
      layout(shape),
      members(of.seats_.members(seat.level, of.self_)),
      aggregator(layout, seat.share, members, of.stream_, of.streams_, of.ordered_,
                 of.seats_.below(seat, of.self_)) {}

Router::Router(Driver& driver, const Seats& seats, uint32_t self, uint32_t stream, uint32_t streams,
               bool ordered)
    : driver_(driver),
      seats_(seats),
      self_(self),
      stream_(stream),
      streams_(streams),
      ordered_(ordered) {}

void Router::start_slots(WorkerPart& part) {
  const Shape& shape = part.layout->shape();
  const uint32_t hosts = seats_.levels() > 1 ? seats_.members(1, self_) : shape.aggregators;
  const size_t more = std::max<size_t>(1, hosts / 4);
  const uint64_t end = part.worker.inspected_blocks() + more * kInspectAtOnce / part.block_bytes;
  size_t bytes = 0;
  uint32_t aggregator;
  while (bytes < more * Message::kFull / 2 && part.worker.inspected_blocks() < end) {
    if (!part.worker.start(&aggregator, &reply_)) {
      part.started = true;
      return;
    }
    contribute(part, aggregator, reply_);
    size_t size = 0;
    for (const BlockRef& block : reply_.blocks) size += block.bytes;
    bytes += size * part.block_bytes / shape.block_bytes();
  }
}

void Router::contribute(WorkerPart& part, uint32_t aggregator, const Frame& frame) {
  const Layout& layout = *part.layout;
  const Seat seat{1, layout.shape().share_of(aggregator)};
  const uint32_t node = seats_.host(seat, self_);
  driver_.contributes(part, aggregator, frame);
  if (node == self_)
    contribute_here(part.sequence, seat, layout.shape(), frame);
  else
    driver_.send_up(node, part.sequence, layout, seat, frame, nullptr);
}

void Router::contribute_here(uint64_t sequence, const Seat& seat, const Shape& shape,
                             const Frame& frame) {
  const std::shared_ptr<AggregatorPart> part = aggregator(sequence, seat, &shape, self_);
  on_contribution(*part, self_, frame);
}

// Sends the partial sums of one of our aggregators to its parent.
void Router::pass_up(AggregatorPart& part, const Frame& frame) {
  driver_.gathered(part, frame);
  const uint32_t node = seats_.host(part.above(), self_);
  if (node == self_) {
    contribute_here(part.sequence, part.above(), part.layout.shape(), frame);
    return release(part, frame.slot, frame.round);
  }
  const Kept kept = driver_.keep(part, frame);
  driver_.send_up(node, part.sequence, part.layout, part.above(), *kept, kept);
}

// Sends a result of one of our aggregators to its members.
void Router::publish(AggregatorPart& part, const Frame& frame) {
  driver_.gathered(part, frame);
  spread(part, driver_.keep(part, frame));
}

void Router::spread(AggregatorPart& part, const Kept& result) {
  receivers_.clear();
  for (uint32_t member = 0; member < part.members; ++member) {
    const uint32_t node = part.node_of(member);
    if (node == self_)
      own_results_.push_back({part.sequence, part.seat, result});
    else
      receivers_.push_back(node);
  }
  if (!receivers_.empty()) driver_.send_down(receivers_, part, result);
}

std::shared_ptr<Router::AggregatorPart> Router::aggregator(uint64_t sequence, const Seat& seat,
                                                           const Shape* shape, uint32_t node) {
  const auto found = aggregators_.find({sequence, seat});
  if (found != aggregators_.end()) {
    if (shape && *shape != found->second->layout.shape())
      driver_.disagree(*found->second, *shape, node);
    return found->second;
  }
  if (!shape) throw Error("a contribution to a collective that has not begun");
  if ((shape->for_one() ? seat.share != shape->owner : seat.share >= shape->aggregators) ||
      seats_.host(seat, self_) != self_)
    throw Error("a contribution to a process that does not aggregate it");
  const std::shared_ptr<AggregatorPart> part = driver_.begin(sequence, seat, *shape, node);
  aggregators_.emplace(std::make_pair(sequence, seat), part);
  return part;
}

void Router::on_contribution(AggregatorPart& part, uint32_t node, const Frame& frame) {
  const uint32_t member = seats_.member_of(part.seat.level, node);
  if (member >= part.members || part.node_of(member) != node)
    throw Error("a contribution to an aggregator of other ranks");
  part.speaking = node;
  driver_.takes_contribution(part, frame);
  part.aggregator.on_contribution(member, frame, part);
  retire(part);
}

const std::shared_ptr<Router::WorkerPart>& Router::worker(uint64_t sequence) const {
  const auto found = workers_.find(sequence);
  if (found == workers_.end()) not_under_way(sequence);
  return found->second;
}

const std::shared_ptr<Router::AggregatorPart>& Router::child(uint64_t sequence,
                                                             const Seat& seat) const {
  const auto found = aggregators_.find({sequence, {seat.level - 1, seat.share}});
  if (found == aggregators_.end()) not_under_way(sequence);
  return found->second;
}

const Layout& Router::layout_of_result(uint64_t sequence, const Seat& seat, uint32_t node) const {
  if (seats_.host(seat, self_) != node)
    throw Error("a result of what is not the group's aggregator");
  return seat.level == 1 ? *worker(sequence)->layout : child(sequence, seat)->layout;
}

void Router::on_result(uint64_t sequence, const Seat& seat, const Frame& frame, const Kept& kept) {
  if (seat.level > 1) {
    const std::shared_ptr<AggregatorPart> part = child(sequence, seat);
    driver_.takes_result(*part);
    part->aggregator.on_result(frame);
    spread(*part, driver_.pass_on(*part, frame, kept));
    return retire(*part);
  }
  const std::shared_ptr<WorkerPart> part = worker(sequence);
  const Shape& shape = part->layout->shape();
  if (shape.for_one() && seat.share != shape.owner)
    throw Error("a result of a process that does not aggregate it");
  const uint32_t aggregator = shape.for_one() ? 0 : seat.share;
  driver_.takes_result(*part, aggregator, frame);
  if (part->worker.on_result(aggregator, frame, &reply_)) contribute(*part, aggregator, reply_);
  driver_.took_result(*part);
}

bool Router::work() {
  const bool any = !releases_.empty() || !own_results_.empty();
  for (const Release& one : std::exchange(releases_, {})) {
    if (stopped_) break;
    one.part->aggregator.released(one.slot, one.round, *one.part);
    retire(*one.part);
  }
  for (size_t n = own_results_.size(); n > 0 && !own_results_.empty(); --n) {
    const OwnResult own = std::move(own_results_.front());
    own_results_.pop_front();
    on_result(own.sequence, own.seat, *own.frame, own.frame);
  }
  return any;
}

// Forgets a part once all its sums are published; frames keep the memory that they refer to.
void Router::retire(AggregatorPart& part) {
  if (part.aggregator.done()) aggregators_.erase({part.sequence, part.seat});
}

Router::Workers Router::stop() {
  stopped_ = true;
  aggregators_.clear();
  own_results_.clear();
  releases_.clear();
  return std::exchange(workers_, {});
}

Router::Kept Router::lend(AggregatorPart& part, const Frame& frame) {
  const auto loan = std::make_shared<Loan>(part, frame);
  return Kept(loan, &loan->frame);
}

Router::Kept Router::copy(const Frame& frame, const Layout& layout, uint32_t aggregator) {
  ask_for_memory();
  const auto copied = std::make_shared<Copied>();
  copied->frame = frame;
  size_t room = 0;  // a listed block becomes packed: it gains a bitmap
  for (const BlockRef& block : frame.blocks)
    room += block.bytes + (block.offsets ? bitmap_bytes(layout.shape().block_size) : 0);
  copied->bytes.resize(room);
  const size_t element = size_of(layout.shape().dtype);
  uint8_t* at = copied->bytes.data();
  for (BlockRef& block : copied->frame.blocks) {
    const uint32_t n = layout.elements_of(layout.block_at(aggregator, frame.slot, block.position));
    if (block.offsets) {
      block.packed = true;
      block.bytes =
          uint32_t(pack_listed(block.offsets, block.data, block.bytes / element, element, n, at));
    } else {
      std::memcpy(at, block.data, block.bytes);
    }
    block.data = at;
    block.home = nullptr;
    block.offsets = nullptr;
    at += block.bytes;
  }
  return Kept(copied, &copied->frame);
}

}  // namespace omnihvd
