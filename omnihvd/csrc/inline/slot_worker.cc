#include "inline/slot_worker.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "inline/slot.h"

namespace omnihvd {
namespace {

constexpr uint64_t kGranularity = 1000;  // microseconds: what clients wait in

}  // namespace

uint32_t InlineIntegers::blocks() const {
  return uint32_t((count_ + INLINE_ELEMENTS - 1) / INLINE_ELEMENTS);
}

uint32_t InlineIntegers::elements(uint32_t block) const {
  return uint32_t(std::min<uint64_t>(INLINE_ELEMENTS, count_ - uint64_t{block} * INLINE_ELEMENTS));
}

bool InlineIntegers::has(uint32_t block) const {
  const int32_t* const at = data_ + uint64_t{block} * INLINE_ELEMENTS;
  int32_t any = 0;
  for (uint32_t i = 0, n = elements(block); i < n; ++i) any |= at[i];
  return any != 0;
}

void InlineIntegers::read(uint32_t block, uint8_t, uint8_t* out) const {
  const size_t bytes = size_t(elements(block)) * 4;
  std::memcpy(out, data_ + uint64_t{block} * INLINE_ELEMENTS, bytes);
  std::memset(out + bytes, 0, INLINE_BLOCK_BYTES - bytes);
}

void InlineIntegers::write(uint32_t block, uint8_t, const uint8_t* in) {
  std::memcpy(data_ + uint64_t{block} * INLINE_ELEMENTS, in, size_t(elements(block)) * 4);
}

SlotWorker::SlotWorker(const Place& place, uint64_t shortest, uint64_t longest)
    : place_(place),
      shortest_(shortest),
      longest_(longest),
      slots_(place.slots),
      queue_(place.slots) {
  if (place.slots == 0 || shortest == 0 || longest < shortest)
    throw Error("a worker needs slots, and time-outs above 0");
}

void SlotWorker::begin(uint64_t now, InlineTensor& tensor, bool dense) {
  OMNIHVD_INVARIANT(done());
  tensor_ = &tensor;
  dense_ = dense;
  check_at_ = now + shortest_;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.open = slot.owner = true;
    slot.tries = 0;
    slot.next = find(i);
    slot.next_exponent = slot.next == INLINE_NONE ? 0 : tensor.exponent(slot.next);
    queue(i, false);
  }
  open_ = uint32_t(slots_.size());
}

// The first block from this on, of its slot, that is sent.
uint32_t SlotWorker::find(uint32_t from) const {
  const uint64_t blocks = tensor_->blocks();
  for (uint64_t block = from; block < blocks; block += slots_.size())
    if (dense_ || tensor_->has(uint32_t(block))) return uint32_t(block);
  return INLINE_NONE;
}

void SlotWorker::queue(uint32_t index, bool repeat) {
  Slot& slot = slots_[index];
  slot.repeat = repeat;
  if (slot.queued) return;
  slot.queued = true;
  queue_[(first_ + queued_++) % queue_.size()] = index;
}

void SlotWorker::queue_overdue(uint64_t now) {
  check_at_ = UINT64_MAX;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.open || slot.queued) continue;
    if (slot.due <= now) {
      ++slot.tries;
      queue(i, true);
    } else {
      check_at_ = std::min(check_at_, slot.due);
    }
  }
}

size_t SlotWorker::next(uint64_t now, uint8_t* out) {
  if (queued_ == 0 && open_ > 0 && now >= check_at_) queue_overdue(now);
  while (queued_ > 0) {
    const uint32_t slot = queue_[first_];
    first_ = (first_ + 1) % queue_.size();
    --queued_;
    slots_[slot].queued = false;
    if (slots_[slot].open) return write(now, slot, out);
  }
  return 0;
}

size_t SlotWorker::write(uint64_t now, uint32_t index, uint8_t* out) {
  Slot& slot = slots_[index];
  const bool has_block = slot.owner && slot.block != INLINE_NONE;
  inline_head head{};
  head.key = place_.key;
  head.kind = INLINE_CONTRIBUTION;
  head.flags = uint8_t((has_block ? INLINE_BLOCK : 0) | (slot.repeat ? INLINE_REPEAT : 0));
  head.job = place_.job;
  head.worker = place_.worker;
  head.slot = uint16_t(index);
  head.round = slot.round;
  head.block = slot.block;
  head.next = slot.next;
  head.exponent = slot.next_exponent;
  std::memcpy(out, &head, sizeof head);
  if (has_block)
    tensor_->read(slot.block, slot.exponent, out + sizeof head);
  else if (slot.repeat)
    std::memset(out + sizeof head, 0, INLINE_BLOCK_BYTES);
  slot.sent_at = now;
  set_due(slot, now);
  ++sent_;
  again_ += slot.repeat;
  blocks_ += has_block;
  return sizeof head + (head.flags ? INLINE_BLOCK_BYTES : 0);
}

// A result for this worker, whose round is not over.
bool SlotWorker::fits(uint32_t index, const inline_head& head, size_t size) const {
  const Slot& slot = slots_[index];
  const bool has_block = head.flags & INLINE_BLOCK;
  if (size != sizeof head + (has_block ? INLINE_BLOCK_BYTES : 0)) return false;
  if (head.round != slot.round) return true;
  if (head.block != slot.block || has_block != (head.block != INLINE_NONE)) return false;
  if (head.next == INLINE_NONE) return slot.next == INLINE_NONE;
  return head.next % slots_.size() == index && head.next < tensor_->blocks() &&
         head.next <= slot.next && (!has_block || head.next > head.block);
}

bool SlotWorker::take(uint64_t now, const uint8_t* data, size_t size) {
  if (size < INLINE_HEAD_BYTES) return false;
  inline_head head;
  std::memcpy(&head, data, sizeof head);
  if (head.key != place_.key || head.kind != INLINE_RESULT || head.job != place_.job ||
      head.slot >= slots_.size())
    return false;
  Slot& slot = slots_[head.slot];
  if (!slot.open || int32_t(head.round - slot.round) < 0) return true;  // known already
  if (!fits(head.slot, head, size)) return false;
  if (head.round != slot.round) {
    if (!slot.asked) queue(head.slot, true);
    slot.asked = true;
    return true;
  }
  if (head.flags & INLINE_BLOCK) tensor_->write(head.block, slot.exponent, data + sizeof head);
  const bool opening = head.block == INLINE_NONE;
  if (slot.owner && !opening && slot.tries == 0 && !slot.asked) measure(now - slot.sent_at);
  ++slot.round;
  slot.block = head.next;
  slot.exponent = head.exponent;
  slot.tries = 0;
  slot.asked = slot.repeat = false;
  if (head.next == INLINE_NONE) {
    slot.open = false;
    --open_;
    return true;
  }
  slot.owner = slot.next == head.next;
  if (slot.owner) {
    slot.next = uint64_t{slot.next} + slots_.size() < tensor_->blocks()
                    ? find(uint32_t(slot.next + slots_.size()))
                    : INLINE_NONE;
    slot.next_exponent = slot.next == INLINE_NONE ? 0 : tensor_->exponent(slot.next);
  }
  if (slot.owner || slot.round % INLINE_HEARD_EVERY == 0)
    queue(head.slot, false);
  else
    set_due(slot, now);
  return true;
}

void SlotWorker::measure(uint64_t trip) {
  if (smoothed_ == 0) {
    smoothed_ = std::max<uint64_t>(trip, 1);
    variation_ = trip / 2;
    return;
  }
  const uint64_t error = trip > smoothed_ ? trip - smoothed_ : smoothed_ - trip;
  variation_ = (3 * variation_ + error) / 4;
  smoothed_ = std::max<uint64_t>((7 * smoothed_ + trip) / 8, 1);
}

uint64_t SlotWorker::patience(const Slot& slot) const {
  const uint64_t measured = smoothed_ + std::max(kGranularity, 4 * variation_);
  const uint64_t first = smoothed_ ? std::max(shortest_, measured) : 3 * shortest_;
  return std::min(longest_, first << std::min(slot.tries, 16u));
}

void SlotWorker::set_due(Slot& slot, uint64_t now) {
  slot.due = now + patience(slot);
  check_at_ = std::min(check_at_, slot.due);
}

std::pair<uint16_t, uint32_t> SlotWorker::awaited() const {
  const auto open =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.open; });
  OMNIHVD_INVARIANT(open != slots_.end());
  return {uint16_t(open - slots_.begin()), open->round};
}

std::optional<uint64_t> SlotWorker::wake_at() const {
  if (open_ == 0) return {};
  return queued_ > 0 ? 0 : check_at_;
}

}  // namespace omnihvd
