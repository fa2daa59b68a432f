// GroupStream: contributions up to aggregators, results down from them.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/rare.h"
#include "engine/group_tasks.h"
#include "engine/stats.h"
#include "engine/trace.h"

namespace omnihvd {
namespace {

// Counts sums that do not lie in this process's tensor: a copy took or will take them there.
void count_copied(const Frame& frame) {
  uint64_t bytes = 0;
  for (const BlockRef& block : frame.blocks) bytes += block.home ? 0 : block.bytes;
  stats().bytes_copied += bytes;
}

}  // namespace

// Listed blocks become packed ones, as the aggregator holds them: a message's numbers vanish with
// it.
GroupStream::Copied::Copied(const Frame& of, const Layout& layout, uint32_t aggregator)
    : frame(of) {
  ask_for_memory();
  bytes.resize(of.blocks.size() * layout.shape().block_bytes());
  const size_t element = size_of(layout.shape().dtype);
  uint8_t* at = bytes.data();
  for (BlockRef& block : frame.blocks) {
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
}

Seat GroupStream::next_seat(MessageReader& reader, uint32_t aggregator) const {
  return info_->has_levels() ? info_->seats->at(reader.seat()) : info_->only_seat(aggregator);
}

// Starts some slots at a time: enough to fill a message to each aggregator if there is little to
// send, but few enough to send it soon and to hear the others meanwhile.
void GroupStream::start_slots(WorkerTask& task) {
  const Shape& shape = task.collective->layout.shape();
  const uint32_t hosts = info_->has_levels() ? info_->seats->members(1, self_) : shape.aggregators;
  const size_t more = std::max<size_t>(1, hosts / 4);
  const uint64_t end = task.worker.inspected_blocks() + more * kInspectAtOnce / shape.block_bytes();
  size_t bytes = 0;
  uint32_t aggregator;
  while (bytes < more * Message::kFull / 2 && task.worker.inspected_blocks() < end) {
    if (!task.worker.start(&aggregator, &reply_)) {
      task.started = true;
      return;
    }
    contribute(task, aggregator, reply_);
    for (const BlockRef& block : reply_.blocks) bytes += block.bytes;
  }
}

// Sends our worker's contribution.
void GroupStream::contribute(WorkerTask& task, uint32_t aggregator, const Frame& frame) {
  const uint64_t sequence = task.collective->sequence;
  const Layout& layout = task.collective->layout;
  const Seat seat{1, layout.shape().share_of(aggregator)};
  const uint32_t host = info_->seats->host(seat, self_);
  if (tracing()) task.contributed(aggregator, frame.slot);
  if (host == self_) {
    const auto own = aggregator_task(sequence, seat, &layout.shape(), self_);
    own->touched = Clock::now();
    take_contribution(*own, self_, frame);
    retire(*own);
  } else if (Outgoing* const out = send_up(sequence, layout, seat, host, frame)) {
    refer_to_worker(*out, sequence);
  }
}

// Sends the partial sums of one of our aggregators to its parent.
void GroupStream::pass_up(AggregatorTask& task, const Frame& frame) {
  note_last(task, frame);
  const uint32_t host = info_->seats->host(task.above(), self_);
  const auto loan = std::make_shared<Loan>(task.shared_from_this(), frame);
  if (host == self_) {
    const auto above = aggregator_task(task.sequence, task.above(), &task.layout.shape(), self_);
    above->touched = Clock::now();
    take_contribution(*above, self_, frame);
    retire(*above);
  } else if (Outgoing* const out = send_up(task.sequence, task.layout, task.above(), host, frame)) {
    out->holds.push_back(loan);
  }
}

// Returns the message if it refers to the frame's memory.
GroupStream::Outgoing* GroupStream::send_up(uint64_t sequence, const Layout& layout,
                                            const Seat& seat, uint32_t host, const Frame& frame) {
  frame_bytes_.encode(frame, layout, seat.share, info_->seats->number_in_frames(seat));
  count_coded(layout, frame, 1);
  Outgoing& out = open(host, Kind::contribution, sequence,
                       frame.round == 0 ? &layout.shape() : nullptr, frame_bytes_.size());
  return out.message.add(frame_bytes_) ? &out : nullptr;
}

void GroupStream::on_contribution(MessageReader& reader) {
  const Header& header = reader.header();
  std::optional<Shape> shape;
  if (reader.has_shape()) shape = reader.shape();
  while (reader.more()) {
    const Seat seat = next_seat(reader, self_);
    const std::shared_ptr<AggregatorTask> task =
        aggregator_task(header.sequence, seat, shape ? &*shape : nullptr, header.from);
    task->touched = Clock::now();
    const uint32_t member = info_->seats->member_of(seat.level, header.from);
    const auto named = [&](uint32_t slot, uint32_t round) {
      return task->aggregator.named(member, slot, round);
    };
    reader.next(task->layout, seat.share, named, &scratch_);
    take_contribution(*task, header.from, scratch_);
    retire(*task);
  }
}

void GroupStream::take_contribution(AggregatorTask& task, uint32_t node, const Frame& frame) {
  const uint32_t member = info_->seats->member_of(task.seat.level, node);
  if (member >= task.members || task.node_of(member) != node)
    throw Error("a contribution of " + info_->name_of(node) + " to what is not its group's");
  task.speaking = node;
  if (tracing()) task.first_came.emplace(frame.slot, task.touched);
  task.aggregator.on_contribution(member, frame, task);
}

// The message refers to our worker's tensor, which must not change until it is sent.
void GroupStream::refer_to_worker(Outgoing& out, uint64_t sequence) {
  if (out.worker) return;
  out.worker = workers_.at(sequence);
  ++out.worker->unsent;
}

std::shared_ptr<GroupStream::WorkerTask> GroupStream::worker_task(uint64_t sequence) const {
  const auto found = workers_.find(sequence);
  if (found == workers_.end())
    throw Error("a result for collective " + std::to_string(sequence) + ", which is not under way");
  return found->second;
}

std::shared_ptr<GroupStream::AggregatorTask> GroupStream::aggregator_below(uint64_t sequence,
                                                                           const Seat& seat) const {
  const auto found = aggregators_.find({sequence, {seat.level - 1, seat.share}});
  if (found == aggregators_.end())
    throw Error("a result for collective " + std::to_string(sequence) + ", which is not under way");
  return found->second;
}

void GroupStream::on_result(MessageReader& reader) {
  const Header& header = reader.header();
  while (reader.more()) {
    const Seat seat = next_seat(reader, header.from);
    if (info_->seats->host(seat, self_) != header.from)
      throw Error("a result of what is not the group's aggregator");
    const Layout& layout = seat.level == 1 ? worker_task(header.sequence)->collective->layout
                                           : aggregator_below(header.sequence, seat)->layout;
    reader.next(layout, seat.share, nullptr, &scratch_);
    hear(header.sequence, seat, scratch_);
  }
}

// A result of the aggregator with this role in our group.
void GroupStream::hear(uint64_t sequence, const Seat& seat, const Frame& frame) {
  if (seat.level == 1) return take_result(sequence, seat.share, frame);
  const std::shared_ptr<AggregatorTask> task = aggregator_below(sequence, seat);
  task->touched = Clock::now();
  task->aggregator.on_result(frame);
  const auto copied = std::make_shared<Copied>(frame, task->layout, seat.share);
  count_copied(copied->frame);
  spread(*task, copied->frame, copied);
  retire(*task);
}

// A result for our worker.
void GroupStream::take_result(uint64_t sequence, uint32_t share, const Frame& frame) {
  const std::shared_ptr<WorkerTask> task = worker_task(sequence);
  const Shape& shape = task->collective->layout.shape();
  if (shape.for_one() && share != shape.owner)
    throw Error("a result of a process that does not aggregate it");
  const uint32_t aggregator = shape.for_one() ? 0 : share;
  task->touched = Clock::now();
  if (tracing()) trace_round(*task, aggregator, frame);
  count_copied(frame);
  if (task->worker.on_result(aggregator, frame, &reply_)) contribute(*task, aggregator, reply_);
  finish_if_done(*task);
}

std::shared_ptr<GroupStream::AggregatorTask> GroupStream::aggregator_task(uint64_t sequence,
                                                                          const Seat& seat,
                                                                          const Shape* shape,
                                                                          uint32_t node) {
  const auto found = aggregators_.find({sequence, seat});
  if (found != aggregators_.end()) {
    const Shape& first = found->second->layout.shape();
    if (shape && *shape != first)
      throw Error("the ranks disagree about allreduce number " + std::to_string(sequence) + ": " +
                  info_->name_of(node) + " sums " + shape_text(*shape) + ", " +
                  info_->name_of(found->second->first_node) + " sums " + shape_text(first) +
                  disagreement(shape->codec, first.codec));
    return found->second;
  }
  if (!shape) throw Error("a contribution to a collective that has not begun");
  const bool for_one = shape->for_one();
  if ((for_one && (!info_->can_reduce() || shape->owner >= info_->workers)) ||
      *shape != info_->shape_of(shape->count, shape->dtype, shape->codec, shape->owner))
    throw Error("a shape that this group's settings do not give");
  if ((for_one ? seat.share != shape->owner : seat.share >= shape->aggregators) ||
      info_->seats->host(seat, self_) != self_)
    throw Error("a contribution to a process that does not aggregate it");
  const auto task = std::make_shared<AggregatorTask>(*this, sequence, seat, *shape, node);
  aggregators_.emplace(std::make_pair(sequence, seat), task);
  return task;
}

// A result of our aggregator.
void GroupStream::publish(AggregatorTask& task, const Frame& frame) {
  note_last(task, frame);
  count_copied(frame);  // when the first contribution came
  spread(task, frame, std::make_shared<Loan>(task.shared_from_this(), frame));
}

// Sends a result to all members; those in this process get no message. In a reduce only the owner,
// which is in this process, gets the sums.
void GroupStream::spread(AggregatorTask& task, const Frame& frame, const Hold& hold) {
  const bool at_home = std::any_of(frame.blocks.begin(), frame.blocks.end(),
                                   [](const BlockRef& block) { return block.home; });
  Frame told;
  const bool for_one = task.layout.shape().for_one();
  if (for_one) told = frame.without_sums();
  frame_bytes_.encode(for_one ? told : frame, task.layout, task.seat.share,
                      info_->seats->number_in_frames(task.seat));
  uint32_t receivers = 0;
  for (uint32_t member = 0; member < task.members; ++member) {
    const uint32_t node = task.node_of(member);
    if (node == self_) {
      own_results_.push_back({task.sequence, task.seat, frame, hold});
      continue;
    }
    ++receivers;
    Outgoing& out = open(node, Kind::result, task.sequence, nullptr, frame_bytes_.size());
    if (out.message.add(frame_bytes_)) {
      out.holds.push_back(hold);
      if (at_home) refer_to_worker(out, task.sequence);
    }
  }
  count_coded(task.layout, for_one ? told : frame, receivers);
}

void GroupStream::release(const std::shared_ptr<AggregatorTask>& task, uint32_t slot,
                          uint32_t round) {
  if (failure_) return;
  task->aggregator.released(slot, round, *task);
  retire(*task);
}

// Forgets a collective once all its sums are published; messages in flight keep what they refer to.
void GroupStream::retire(AggregatorTask& task) {
  if (task.aggregator.done()) aggregators_.erase({task.sequence, task.seat});
}

// Only ranks are counted as the last to contribute.
void GroupStream::note_last(AggregatorTask& task, const Frame& frame) {
  if (task.seat.level > 1) return;
  count_last(task.speaking);
  if (tracing()) trace_gathering(task, frame);
}

// From a contribution to the result: what this rank waited for.
void GroupStream::trace_round(WorkerTask& task, uint32_t aggregator, const Frame& frame) {
  const uint32_t share = task.collective->layout.shape().share_of(aggregator);
  const auto sent = task.sent_at.find({aggregator, frame.slot});
  // A rank that had nothing in this window has not spoken, and has waited since the last result.
  const Clock::time_point since =
      sent == task.sent_at.end() ? task.collective->begun : sent->second;
  trace({"round",
         since,
         task.touched,
         {{{"aggregator", info_->seats->host({1, share}, self_)},
           {"slot", frame.slot},
           {"blocks", frame.blocks.size()}}}});
  task.contributed(aggregator, frame.slot);
}

// Traces the time from a round's first contribution to its last, and the node that sent the last.
void GroupStream::trace_gathering(AggregatorTask& task, const Frame& frame) {
  const auto first = task.first_came.find(frame.slot);
  if (first == task.first_came.end()) return;
  trace({"waiting",
         first->second,
         Clock::now(),
         {{{"for_rank", task.speaking}, {"slot", frame.slot}, {"blocks", frame.blocks.size()}}}});
  task.first_came.erase(first);
}

}  // namespace omnihvd
