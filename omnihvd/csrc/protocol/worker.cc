#include "protocol/worker.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace omnihvd {

Worker::Worker(const Layout& layout, Tensor& tensor, uint32_t scan_ahead, uint32_t stream,
               uint32_t streams)
    : layout_(layout),
      tensor_(tensor),
      scan_ahead_(std::max(scan_ahead, layout.shape().window)),
      stream_(stream),
      streams_(streams),
      own_slots_(layout.shape().slots > stream
                     ? (layout.shape().slots - stream + streams - 1) / streams
                     : 0),
      slots_(size_t(own_slots_) * layout.shape().aggregators),
      open_slots_(slots_.size()) {}

Worker::Slot& Worker::slot_of(uint32_t aggregator, uint32_t slot) {
  return slots_[size_t(slot / streams_) * layout_.shape().aggregators + aggregator];
}

bool Worker::start(uint32_t* aggregator, Frame* frame) {
  while (started_ < slots_.size()) {
    const size_t index = started_++;
    // Aggregators in turn, so that all links are busy from the start.
    *aggregator = uint32_t(index % layout_.shape().aggregators);
    const uint32_t slot = uint32_t(index / layout_.shape().aggregators) * streams_ + stream_;
    Slot& state = slots_[index];
    if (layout_.positions(slot) == 0) {
      state.done = true;
      --open_slots_;
      continue;
    }
    state.hi = std::min<uint64_t>(layout_.shape().window, layout_.positions(slot));
    state.named = state.hi;
    contribute(state, *aggregator, slot, frame);
    return true;
  }
  return false;
}

// Inspects the stream up to the end of the window and as far beyond as is worth naming.
void Worker::scan(Slot& state, uint32_t aggregator, uint32_t slot) {
  const uint64_t end = layout_.positions(slot);
  // All workers stop at the same positions. Otherwise each worker that found little would end a
  // window where it stopped, and rounds would be as many as such workers.
  const uint64_t limit = std::min(end, (state.hi / scan_ahead_ + 2) * scan_ahead_);
  const uint32_t enough = layout_.shape().window;
  const uint32_t stripe = layout_.shape().stripe;
  size_t beyond = state.found.end() - std::lower_bound(state.found.begin() + state.first_found,
                                                       state.found.end(), state.hi);
  while (state.scanned < limit && (state.scanned < state.hi || beyond < enough)) {
    const uint64_t stripe_end = std::min(limit, (state.scanned / stripe + 1) * stripe);
    uint64_t block = layout_.block_at(aggregator, slot, state.scanned);
    if (block >= layout_.blocks()) {  // and so are all that follow
      state.scanned = end;
      return;
    }
    for (; state.scanned < stripe_end && block < layout_.blocks(); ++state.scanned, ++block) {
      if (!tensor_.nonzero(block)) continue;
      state.found.push_back(state.scanned);
      beyond += state.scanned >= state.hi;
    }
    state.scanned = stripe_end;
  }
}

void Worker::contribute(Slot& state, uint32_t aggregator, uint32_t slot, Frame* frame) {
  frame->clear(slot, state.round);
  if (state.first_found == state.found.size()) {
    state.found.clear();
    state.first_found = 0;
  } else if (state.first_found > 4 * size_t(layout_.shape().window)) {
    state.found.erase(state.found.begin(), state.found.begin() + state.first_found);
    state.first_found = 0;
  }
  scan(state, aggregator, slot);
  tensor_.next_message();
  while (state.first_found < state.found.size() && state.found[state.first_found] < state.hi) {
    const uint64_t position = state.found[state.first_found++];
    frame->blocks.push_back(tensor_.read(layout_.block_at(aggregator, slot, position), position));
  }
  nonzero_blocks_ += frame->blocks.size();
  frame->ahead.assign(
      std::lower_bound(state.found.begin() + state.first_found, state.found.end(), state.named),
      state.found.end());
  state.named = state.scanned;
  frame->bound = state.scanned == layout_.positions(slot) ? kEnd : state.scanned;
  if (frame->bound == kEnd) state.named = kEnd;
}

void Worker::write_zeros(uint32_t aggregator, uint32_t slot, uint64_t first, uint64_t last) {
  const uint32_t stripe = layout_.shape().stripe;
  while (first < last) {
    uint64_t block = layout_.block_at(aggregator, slot, first);
    const uint64_t stripe_end = std::min(last, (first / stripe + 1) * stripe);
    for (; first < stripe_end; ++first, ++block) {
      if (block >= layout_.blocks()) return;
      tensor_.write_zero(block);
    }
  }
}

void Worker::write(const Slot& state, uint32_t aggregator, const Frame& frame) {
  uint64_t next = state.lo;
  for (const BlockRef& sum : frame.blocks) {
    if (tensor_.wants_zeros()) write_zeros(aggregator, frame.slot, next, sum.position);
    tensor_.write(layout_.block_at(aggregator, frame.slot, sum.position), sum);
    next = sum.position + 1;
  }
  if (tensor_.wants_zeros()) write_zeros(aggregator, frame.slot, next, state.hi);
  result_blocks_ += frame.blocks.size();
}

bool Worker::on_result(uint32_t aggregator, const Frame& frame, Frame* reply) {
  const Shape& shape = layout_.shape();
  if (aggregator >= shape.aggregators || frame.slot >= shape.slots ||
      frame.slot % streams_ != stream_)
    throw Error("a result for a slot that does not exist: " + std::to_string(frame.slot));
  Slot& state = slot_of(aggregator, frame.slot);
  if (state.done || state.hi == 0 || frame.round != state.round)
    throw Error("a result for round " + std::to_string(frame.round) + " of slot " +
                std::to_string(frame.slot) + ", which is in round " + std::to_string(state.round));
  if (!frame.blocks.empty() &&
      (frame.blocks.front().position < state.lo || frame.blocks.back().position >= state.hi))
    throw Error("a result holds a block outside its window: an aggregator is faulty");
  if (frame.bound <= state.hi || frame.bound > state.named)
    throw Error("a result names a next window that nobody has announced");
  if (frame.bound == kEnd && state.first_found < state.found.size())
    throw Error("an aggregator ended a slot before all blocks were sent");
  write(state, aggregator, frame);
  state.lo = state.hi;
  state.hi = frame.bound;
  ++state.round;
  if (frame.bound == kEnd) {
    // What lies behind the last window is zero on all ranks.
    if (tensor_.wants_zeros())
      write_zeros(aggregator, frame.slot, state.lo, layout_.positions(frame.slot));
    state.done = true;
    --open_slots_;
    return false;
  }
  const bool speaks =
      (state.first_found < state.found.size() && state.found[state.first_found] < state.hi) ||
      state.named == state.hi;
  if (speaks) contribute(state, aggregator, frame.slot, reply);
  return speaks;
}

}  // namespace omnihvd
