#include "protocol/worker.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/rare.h"

namespace omnihvd {
namespace {

// Positions that a list's slot looks ahead. A frame's positions span 2^32 at most.
constexpr uint64_t kFar = uint64_t{1} << 30;

}  // namespace

uint8_t Worker::Slot::exponent_at(uint64_t position) const {
  const auto found = std::lower_bound(window.begin(), window.end(), position);
  return exponents[size_t(found - window.begin())];
}

Worker::Worker(const Layout& layout, Tensor& tensor, uint32_t scan_ahead, uint32_t stream,
               uint32_t streams, std::optional<uint32_t> local_aggregator)
    : layout_(layout),
      tensor_(tensor),
      listed_(tensor.listed() != nullptr),
      scan_ahead_(listed_ ? kFar : std::max(scan_ahead, layout.shape().window)),
      stream_(stream),
      streams_(streams),
      local_aggregator_(local_aggregator),
      arithmetic_(layout.shape().arithmetic),
      inspected_(layout.shape().slots > stream
                     ? (layout.shape().slots - stream + streams - 1) / streams
                     : 0),
      slots_(inspected_.size() * layout.shape().aggregators),
      open_slots_(slots_.size()) {
  for (size_t index = 0; index < slots_.size(); ++index) {
    slots_[index].done = layout.positions(slot_at(index)) == 0;
    open_slots_ -= slots_[index].done;
  }
  if (listed_) take_list(*tensor.listed());
}

void Worker::take_list(const std::vector<uint64_t>& blocks) {
  for (const uint64_t block : blocks) {
    const Layout::Place place = layout_.place_of(block);
    if (place.slot % streams_ == stream_)
      slot_of(place.aggregator, place.slot).found.push_back(place.position);
  }
  std::fill(inspected_.begin(), inspected_.end(), UINT64_MAX);
}

Worker::Slot& Worker::slot_of(uint32_t aggregator, uint32_t slot) {
  return slots_[size_t(slot / streams_) * layout_.shape().aggregators + aggregator];
}

bool Worker::start(uint32_t* aggregator, Frame* frame) {
  while (started_ < slots_.size()) {
    const size_t index = started_++;
    // Takes aggregators in turn, so that all links are busy from the start.
    *aggregator = uint32_t(index % layout_.shape().aggregators);
    const uint32_t slot = slot_at(index);
    Slot& state = slots_[index];
    if (state.done) continue;  // it has no blocks
    // Integers can only be sent once their scale is known.
    if (!arithmetic_.integers())
      state.hi = std::min<uint64_t>(layout_.shape().window, layout_.positions(slot));
    state.named = state.hi;
    contribute(state, *aggregator, slot, frame);
    return true;
  }
  return false;
}

// Inspects the stream up to the end of the window and as far beyond as is worth naming.
void Worker::look_ahead(Slot& state, uint32_t slot) {
  const uint64_t end = layout_.positions(slot);
  // All workers stop at the same positions. Otherwise each worker that found little would end a
  // window where it stopped, and there would be as many rounds as such workers.
  const uint64_t limit = std::min(end, (state.hi / scan_ahead_ + 2) * scan_ahead_);
  const uint32_t enough = rarely(Rare::short_look) ? 1 : layout_.shape().window;
  const uint32_t stripe = layout_.shape().stripe;
  const uint64_t& inspected = inspected_[slot / streams_];
  auto beyond = size_t(state.seen_end() - state.first_unsent(state.hi));
  while (state.seen < limit && (state.seen < state.hi || beyond < enough)) {
    if (state.seen == inspected) inspect_row(slot);
    if (listed_)
      state.seen = state.seen_found < state.found.size() ? state.found[state.seen_found] : limit;
    state.seen = std::min(limit, (state.seen / stripe + 1) * stripe);
    for (; state.seen_found < state.found.size() && state.found[state.seen_found] < state.seen;
         ++state.seen_found)
      beyond += state.found[state.seen_found] >= state.hi;
  }
}

// Inspects the next stripe of all aggregators at once: memory is read fastest in long runs.
void Worker::inspect_row(uint32_t slot) {
  const uint32_t aggregators = layout_.shape().aggregators;
  const uint32_t stripe = layout_.shape().stripe;
  uint64_t& inspected = inspected_[slot / streams_];
  const Layout::Row row = layout_.row_at(slot, inspected);
  uint64_t block = row.first_block;
  for (uint32_t column = 0; column < aggregators && block < layout_.blocks(); ++column) {
    std::vector<uint64_t>& found = slot_of((column + row.rotation) % aggregators, slot).found;
    const uint64_t stripe_end = std::min(block + stripe, layout_.blocks());
    for (uint64_t position = inspected; block < stripe_end; ++position, ++block)
      if (tensor_.nonzero(block) || arithmetic_.dense()) found.push_back(position);
  }
  inspected += stripe;
  inspected_blocks_ += block - row.first_block;
}

void Worker::contribute(Slot& state, uint32_t aggregator, uint32_t slot, Frame* frame) {
  frame->clear(slot, state.round);
  frame->as_named = state.round > 0;  // only the first window is not named beforehand
  // A list is long from the start: what remains of it must not move too often.
  const size_t sent = state.first_found;
  if ((sent > 4 * size_t(layout_.shape().window) && 2 * sent > state.found.size()) ||
      sent == state.found.size()) {
    state.found.erase(state.found.begin(), state.found.begin() + state.first_found);
    state.seen_found -= state.first_found;
    state.first_found = 0;
  }
  look_ahead(state, slot);
  tensor_.next_message();
  BlockCursor cursor(layout_, aggregator, slot);
  while (state.first_found < state.seen_found && state.found[state.first_found] < state.hi) {
    const uint64_t position = state.found[state.first_found++];
    read_block(state, aggregator, cursor.block_at(position), position, frame);
  }
  nonzero_blocks_ += frame->blocks.size();
  frame->ahead.assign(state.first_unsent(state.named), state.seen_end());
  if (arithmetic_.integers()) name_exponents(aggregator, frame);
  state.named = state.seen;
  frame->bound = state.seen == layout_.positions(slot) ? kEnd : state.seen;
  if (frame->bound == kEnd) state.named = kEnd;
}

void Worker::read_block(const Slot& state, uint32_t aggregator, uint64_t block, uint64_t position,
                        Frame* frame) {
  if (arithmetic_.integers())
    frame->blocks.push_back(tensor_.read_integers(block, position, state.exponent_at(position)));
  else if (aggregator == local_aggregator_)
    frame->blocks.push_back(tensor_.read_local(block, position));
  else
    frame->blocks.push_back(tensor_.read(block, position));
}

// Adds the exponents of the blocks that the frame names.
void Worker::name_exponents(uint32_t aggregator, Frame* frame) {
  BlockCursor cursor(layout_, aggregator, frame->slot);
  for (const uint64_t position : frame->ahead)
    frame->exponents.push_back(tensor_.exponent(cursor.block_at(position)));
}

// Does a result have the right scales: known before for the blocks that it sums, and new for the
// blocks that are next?
void Worker::check_exponents(const Slot& state, const Frame& frame) const {
  for (const BlockRef& sum : frame.blocks)
    if (!std::binary_search(state.window.begin(), state.window.end(), sum.position))
      throw Error("a result holds a block without an announced scale: an aggregator is faulty");
  if (!std::includes(frame.ahead.begin(), frame.ahead.end(), state.unsent(),
                     state.first_unsent(frame.bound)))
    throw Error("a result lacks the scale of a block that this rank has: an aggregator is faulty");
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
  BlockCursor cursor(layout_, aggregator, frame.slot);
  for (const BlockRef& sum : frame.blocks) {
    if (tensor_.wants_zeros()) write_zeros(aggregator, frame.slot, next, sum.position);
    const uint64_t block = cursor.block_at(sum.position);
    if (arithmetic_.integers()) {
      BlockRef scaled = sum;
      scaled.exponent = state.exponent_at(sum.position);
      tensor_.write(block, scaled);
    } else {
      tensor_.write(block, sum);
    }
    next = sum.position + 1;
  }
  if (tensor_.wants_zeros()) write_zeros(aggregator, frame.slot, next, state.hi);
  result_blocks_ += frame.blocks.size() + frame.kept;
}

bool Worker::on_result(uint32_t aggregator, const Frame& frame, Frame* reply) {
  const Shape& shape = layout_.shape();
  if (aggregator >= shape.aggregators || frame.slot >= shape.slots ||
      frame.slot % streams_ != stream_)
    throw Error("a result for a slot that does not exist: " + std::to_string(frame.slot));
  Slot& state = slot_of(aggregator, frame.slot);
  if (state.done || state.named == 0 || frame.round != state.round)
    throw Error("a result for round " + std::to_string(frame.round) + " of slot " +
                std::to_string(frame.slot) + ", which is in round " + std::to_string(state.round));
  if (!frame.blocks.empty() &&
      (frame.blocks.front().position < state.lo || frame.blocks.back().position >= state.hi))
    throw Error("a result holds a block outside its window: an aggregator is faulty");
  if (frame.bound <= state.hi || frame.bound > state.named)
    throw Error("a result names a next window that nobody has announced");
  if (frame.bound == kEnd && state.first_found < state.seen_found)
    throw Error("an aggregator ended a slot before all blocks were sent");
  if (state.first_unsent(frame.bound) - state.unsent() > ptrdiff_t(shape.window))
    throw Error("a result names a next window of more blocks than fit: an aggregator is faulty");
  if (arithmetic_.integers()) check_exponents(state, frame);
  write(state, aggregator, frame);
  if (arithmetic_.integers()) {
    state.window = frame.ahead;
    state.exponents = frame.exponents;
  }
  state.lo = state.hi;
  state.hi = frame.bound;
  ++state.round;
  if (frame.bound == kEnd) {
    // Everything past the last window is zero on all ranks.
    if (tensor_.wants_zeros())
      write_zeros(aggregator, frame.slot, state.lo, layout_.positions(frame.slot));
    state.done = true;
    --open_slots_;
    return false;
  }
  const bool speaks =
      (state.first_found < state.seen_found && state.found[state.first_found] < state.hi) ||
      state.named == state.hi;
  if (speaks) contribute(state, aggregator, frame.slot, reply);
  return speaks;
}

std::vector<uint32_t> Worker::awaited() const {
  const uint32_t count = layout_.shape().aggregators;
  std::vector<uint32_t> aggregators;
  for (uint32_t aggregator = 0; aggregator < count; ++aggregator)
    for (size_t index = aggregator; index < slots_.size(); index += count)
      if (slots_[index].named > 0 && !slots_[index].done) {  // has contributed
        aggregators.push_back(aggregator);
        break;
      }
  return aggregators;
}

}  // namespace omnihvd
