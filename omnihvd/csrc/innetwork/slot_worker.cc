#include "innetwork/slot_worker.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "innetwork/slot.h"

namespace omnihvd {
namespace {

constexpr uint64_t kGranularity = 1000;  // microseconds: the resolution of a client's waits

}  // namespace

SlotWorker::SlotWorker(const Place& place, uint64_t shortest, uint64_t longest)
    : place_(place),
      shortest_(shortest),
      longest_(longest),
      slots_(place.slots),
      queue_(place.slots) {
  if (place.slots == 0 || shortest == 0 || longest < shortest)
    throw Error("a worker needs slots, and time-outs above 0");
}

void SlotWorker::begin(uint64_t now, InlineTensor& tensor, uint64_t what) {
  OMNIHVD_INVARIANT(done());
  tensor_ = &tensor;
  what_ = what;
  moved_at_ = now;
  own_ = united_ = 0;
  check_at_ = now + shortest_;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.open = slot.owner = true;
    slot.tries = 0;
    name_next(slot, i);
    queue(i, false);
  }
  open_ = uint32_t(slots_.size());
}

// Names the slot's first block, from `from` on, that this worker sends.
void SlotWorker::name_next(Slot& slot, uint64_t from) {
  const uint64_t blocks = tensor_->blocks();
  while (from < blocks && !tensor_->has(uint32_t(from))) from += slots_.size();
  const bool found = from < blocks;
  slot.next = found ? uint32_t(from) : INLINE_NONE;
  slot.next_exponent = found ? tensor_->exponent(slot.next) : 0;
  own_ += found;
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
  const size_t room = head.flags ? tensor_->sent_bytes() : 0;
  if (room == INLINE_CODE_BYTES) head.flags |= INLINE_CODES;
  head.job = place_.job;
  head.worker = place_.worker;
  head.slot = uint16_t(index);
  head.round = slot.round;
  head.block = slot.block;
  head.next = slot.next;
  head.exponent = slot.next_exponent;
  const auto bits = uint8_t(what_ >> (56 - 8 * (index % 8)));
  head.what = uint16_t(bits << 8 | (bits ^ 0xFF));
  std::memcpy(out, &head, sizeof head);
  if (has_block)
    tensor_->read(slot.block, slot.exponent, out + sizeof head);
  else
    std::memset(out + sizeof head, 0, room);
  slot.sent_at = now;
  set_due(slot, now);
  const size_t size = sizeof head + room;
  ++counts_.sent;
  counts_.again += slot.repeat;
  counts_.with_block += has_block;
  counts_.bytes_sent += size;
  return size;
}

// Is it a result for this worker, of a round that is not over?
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

bool SlotWorker::accept(uint64_t now, const uint8_t* data, size_t size) {
  if (size < INLINE_HEAD_BYTES) return false;
  inline_head head;
  std::memcpy(&head, data, sizeof head);
  if (head.key != place_.key || head.kind != INLINE_RESULT || head.job != place_.job ||
      head.slot >= slots_.size())
    return false;
  Slot& slot = slots_[head.slot];
  if (!slot.open || int32_t(head.round - slot.round) < 0) return true;  // known already
  // First: blocks of other tensors may not fit.
  differs_ |= head.round == slot.round && (head.what >> 8 & head.what & 0xFF);
  if (differs_) return true;
  if (!fits(head.slot, head, size)) return false;
  if (head.round != slot.round) {
    if (!slot.asked) queue(head.slot, true);
    slot.asked = true;
    return true;
  }
  if (head.flags & INLINE_BLOCK) {
    tensor_->write(head.block, slot.exponent, data + sizeof head);
    ++united_;
  }
  const bool opening = head.block == INLINE_NONE;
  if (slot.owner && !opening && !slot.asked) {
    if (slot.tries == 0) trips_.measure(now - slot.sent_at);
    backed_off_ = slot.tries == 0 ? 0 : std::max(backed_off_, slot.tries);
  }
  moved_at_ = now;
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
  if (slot.owner) name_next(slot, uint64_t{slot.next} + slots_.size());
  if (slot.owner || slot.round % INLINE_HEARD_EVERY == 0)
    queue(head.slot, false);
  else
    set_due(slot, now);
  return true;
}

bool SlotWorker::take(uint64_t now, const uint8_t* data, size_t size) {
  const bool accepted = accept(now, data, size);
  ++(accepted ? counts_.received : counts_.refused);
  if (accepted) counts_.bytes_received += size;
  return accepted;
}

void SlotWorker::set_due(Slot& slot, uint64_t now) {
  const uint32_t tries = std::max(slot.tries, backed_off_);
  slot.due = now + trips_.time_out(tries, kGranularity, 3 * shortest_, shortest_, longest_);
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
