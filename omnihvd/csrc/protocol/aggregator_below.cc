// A child aggregator: partial sums go up as contributions, results come down.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/rare.h"
#include "protocol/aggregator_slot.h"

namespace omnihvd {

// Sends the parent the sums of this round, and what members have named since.
void Aggregator::contribute(Slot& slot, Sink& sink) {
  uint64_t bound = known(slot);
  take_sums(slot);
  // A member has sent all that it has named, unless it did not use that form.
  said_.as_named = slot.round > 0 && said_.blocks.size() == slot.window.size();
  const auto from = std::lower_bound(slot.pending.begin(), slot.pending.end(), slot.said);
  auto to = std::lower_bound(from, slot.pending.end(), bound);
  // All members together may have named more than a frame holds.
  const auto most =
      std::ptrdiff_t(rarely(Rare::short_words) ? 1 : Frame::most_ahead(layout_.shape().window));
  if (to - from > most) {
    to = from + most;
    bound = *to;
  }
  said_.ahead.assign(from, to);
  if (integers_) gather_exponents(slot, &said_);
  said_.bound = slot.said = bound;
  sink.contribution(said_);
}

void Aggregator::on_result(const Frame& frame) {
  Slot& slot = slot_of(frame.slot);
  if (!below_ || slot.done || frame.round != slot.round || slot.missing > 0)
    throw Error("a result for round " + std::to_string(frame.round) + " of slot " +
                std::to_string(frame.slot) + ", which is in round " + std::to_string(slot.round));
  if (!frame.blocks.empty() &&
      (frame.blocks.front().position < slot.lo || frame.blocks.back().position >= slot.hi))
    throw Error("a result holds a block outside its window: an aggregator is faulty");
  if (frame.bound <= slot.hi || frame.bound > slot.said)
    throw Error("a result names a next window that nobody has announced");
  if (frame.bound == kEnd && !slot.pending.empty())
    throw Error("an aggregator ended a slot before all blocks were sent");
  const auto next_end = std::lower_bound(slot.pending.begin(), slot.pending.end(), frame.bound);
  if (next_end - slot.pending.begin() > ptrdiff_t(layout_.shape().window))
    throw Error("a result names a next window of more blocks than fit: an aggregator is faulty");
  open_window(slot, frame.bound);
  // A result shows that the sums before it have arrived, but their message may still be referred
  // to.
  Version& next = slot.version();
  if (next.lent) {
    Version fresh;
    fresh.of.resize(next.of.size());
    slot.old.push_back(std::exchange(next, std::move(fresh)));
  }
  // A worker that names its last block also names more, so an awaited aggregator always has a
  // member that speaks.
  OMNIHVD_INVARIANT(slot.done || slot.missing > 0 || slot.said > slot.hi);
}

}  // namespace omnihvd
