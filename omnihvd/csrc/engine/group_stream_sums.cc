// GroupStream: contributions up to aggregators, results down from them.
#include <algorithm>
#include <string>

#include "base/error.h"
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

void count_coded(const Layout& layout, const Frame& frame, uint64_t receivers) {
  if (!layout.shape().codec || frame.blocks.empty()) return;
  uint64_t packed = 0, plain = 0, bytes = 0;
  for (const BlockRef& block : frame.blocks) {
    packed += block.packed;
    plain += !block.packed && !block.coded;
    bytes += block.bytes;
  }
  CodecStats& counts = stats().codecs;
  counts.blocks += receivers * frame.blocks.size();
  counts.packed_blocks += receivers * packed;
  counts.plain_blocks += receivers * plain;
  counts.bytes += receivers * bytes;
  counts.plain_bytes += receivers * frame.blocks.size() * layout.shape().block_bytes();
}

}  // namespace

Seat GroupStream::next_seat(MessageReader& reader, uint32_t aggregator) const {
  return info_->has_levels() ? info_->seats->at(reader.seat()) : info_->only_seat(aggregator);
}

void GroupStream::on_contribution(MessageReader& reader) {
  const Header& header = reader.header();
  std::optional<Shape> shape;
  if (reader.has_shape()) shape = reader.shape();
  while (reader.more()) {
    const Seat seat = next_seat(reader, self_);
    const std::shared_ptr<Router::AggregatorPart> part =
        router_.aggregator(header.sequence, seat, shape ? &*shape : nullptr, header.from);
    const uint32_t member = info_->seats->member_of(seat.level, header.from);
    const auto named = [&](uint32_t slot, uint32_t round) {
      return part->aggregator.named(member, slot, round);
    };
    reader.next(part->layout, seat.share, named, &scratch_);
    router_.on_contribution(*part, header.from, scratch_);
  }
}

void GroupStream::on_result(MessageReader& reader) {
  const Header& header = reader.header();
  while (reader.more()) {
    const Seat seat = next_seat(reader, header.from);
    const Layout& layout = router_.layout_of_result(header.sequence, seat, header.from);
    reader.next(layout, seat.share, nullptr, &scratch_);
    router_.on_result(header.sequence, seat, scratch_, nullptr);
  }
}

void GroupStream::send_up(uint32_t node, uint64_t sequence, const Layout& layout, const Seat& seat,
                          const Frame& frame, const Router::Kept& kept) {
  frame_bytes_.encode(frame, layout, seat.share, info_->seats->number_in_frames(seat));
  count_coded(layout, frame, 1);
  Outgoing& out = open(node, Kind::contribution, sequence,
                       frame.round == 0 ? &layout.shape() : nullptr, frame_bytes_.size());
  if (!out.message.add(frame_bytes_)) return;
  if (kept)
    out.holds.push_back(kept);
  else
    refer_to_worker(out, sequence);
}

// The message refers to our worker's tensor, which must not change until it is sent.
void GroupStream::refer_to_worker(Outgoing& out, uint64_t sequence) {
  if (out.worker) return;
  out.worker = std::static_pointer_cast<WorkerTask>(router_.workers().at(sequence));
  ++out.worker->unsent;
}

// In a reduce only the owner, which is in this process, gets the sums.
void GroupStream::send_down(const std::vector<uint32_t>& nodes, const Router::AggregatorPart& part,
                            const Router::Kept& result) {
  const bool at_home = std::any_of(result->blocks.begin(), result->blocks.end(),
                                   [](const BlockRef& block) { return block.home; });
  Frame told;
  const bool for_one = part.layout.shape().for_one();
  if (for_one) told = result->without_sums();
  const Frame& frame = for_one ? told : *result;
  frame_bytes_.encode(frame, part.layout, part.seat.share,
                      info_->seats->number_in_frames(part.seat));
  for (const uint32_t node : nodes) {
    Outgoing& out = open(node, Kind::result, part.sequence, nullptr, frame_bytes_.size());
    if (!out.message.add(frame_bytes_)) continue;
    out.holds.push_back(result);
    if (at_home) refer_to_worker(out, part.sequence);
  }
  count_coded(part.layout, frame, nodes.size());
}

std::shared_ptr<Router::AggregatorPart> GroupStream::begin(uint64_t sequence, const Seat& seat,
                                                           const Shape& shape, uint32_t node) {
  if ((shape.for_one() && (!info_->all_are_peers() || shape.owner >= info_->workers)) ||
      shape !=
          info_->shape_of(shape.count, shape.dtype, shape.codec, shape.owner, shape.block_size))
    throw Error("a shape that this group's settings do not give");
  return std::make_shared<AggregatorTask>(router_, sequence, seat, shape, node);
}

void GroupStream::disagree(const Router::AggregatorPart& part, const Shape& shape, uint32_t node) {
  const Shape& first = part.layout.shape();
  const uint32_t first_node = static_cast<const AggregatorTask&>(part).first_node;
  throw Error("the ranks disagree about allreduce number " + std::to_string(part.sequence) + ": " +
              info_->name_of(node) + " sums " + shape_text(shape) + ", " +
              info_->name_of(first_node) + " sums " + shape_text(first) +
              disagreement(shape.codec, first.codec) +
              (shape.block_size == first.block_size
                   ? ""
                   : ": in blocks of " + std::to_string(shape.block_size) + " and of " +
                         std::to_string(first.block_size) + " elements"));
}

Router::Kept GroupStream::keep(Router::AggregatorPart& part, const Frame& frame) {
  return router_.lend(part, frame);
}

Router::Kept GroupStream::pass_on(const Router::AggregatorPart& part, const Frame& frame,
                                  const Router::Kept&) {
  Router::Kept copied = Router::copy(frame, part.layout, part.seat.share);
  count_copied(*copied);
  return copied;
}

void GroupStream::contributes(Router::WorkerPart& part, uint32_t aggregator, const Frame& frame) {
  if (tracing()) task_of(part).sent_at[{aggregator, frame.slot}] = Clock::now();
}

void GroupStream::takes_result(Router::WorkerPart& part, uint32_t aggregator, const Frame& frame) {
  WorkerTask& task = task_of(part);
  task.touched = Clock::now();
  if (tracing()) trace_round(task, aggregator, frame);
  count_copied(frame);
}

void GroupStream::took_result(Router::WorkerPart& part) { finish_if_done(task_of(part)); }

void GroupStream::takes_contribution(Router::AggregatorPart& part, const Frame& frame) {
  AggregatorTask& task = task_of(part);
  task.touched = Clock::now();
  if (tracing()) task.first_came.emplace(frame.slot, task.touched);
}

void GroupStream::takes_result(Router::AggregatorPart& part) {
  task_of(part).touched = Clock::now();
}

// Only ranks are counted as the last to contribute.
void GroupStream::gathered(Router::AggregatorPart& part, const Frame& frame) {
  if (!part.is_below()) count_copied(frame);  // when the first contribution came
  if (part.seat.level > 1) return;
  count_last(part.speaking);
  if (tracing()) trace_gathering(task_of(part), frame);
}

// From a contribution to the result: what this rank waited for.
void GroupStream::trace_round(WorkerTask& task, uint32_t aggregator, const Frame& frame) {
  const uint32_t share = task.layout->shape().share_of(aggregator);
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
  contributes(task, aggregator, frame);
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
