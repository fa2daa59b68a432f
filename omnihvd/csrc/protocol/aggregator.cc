#include "protocol/aggregator.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/rare.h"
#include "protocol/aggregator_slot.h"

namespace omnihvd {

Aggregator::Aggregator(const Layout& layout, uint32_t index, uint32_t workers, uint32_t stream,
                       uint32_t streams, bool ordered, std::optional<uint32_t> below)
    : layout_(layout),
      ops_(sum_ops(layout.shape().arithmetic, layout.shape().dtype)),
      received_(layout.shape().sums_codec(), contribution_coding(layout.shape().codec), kSums,
                layout.shape().dtype),
      to_send_(layout.shape().sums_codec(),
               below ? contribution_coding(layout.shape().codec) : sum_coding(layout.shape().codec),
               below.value_or(kSums), layout.shape().dtype),
      index_(index),
      workers_(workers),
      stream_(stream),
      streams_(streams),
      integers_(layout.shape().arithmetic.integers()),
      ordered_(ordered && !integers_),
      below_(below),
      element_(size_of(layout.shape().dtype)),
      accumulator_block_bytes_(layout.shape().sum_bytes()),
      sums_bytes_(layout.shape().window * accumulator_block_bytes_),
      packed_bytes_(layout.shape().window * layout.shape().made_bytes()) {
  const Shape& shape = layout.shape();
  if (shape.codec) decoded_.resize(shape.block_bytes());
  for (uint32_t number = stream; number < shape.slots; number += streams) {
    Slot& slot = slots_.emplace_back();
    slot.number = number;
    slot.done = layout.positions(number) == 0;
    if (!integers_) slot.hi = std::min<uint64_t>(shape.window, layout.positions(number));
    slot.window.resize(slot.hi);
    for (uint64_t i = 0; i < slot.hi; ++i) slot.window[i] = i;
    slot.named.resize(workers);
    slot.awaited.assign(workers, 1);
    slot.missing = workers;
    if (ordered_) slot.held.resize(workers);
    for (Version& version : slot.versions) version.of.resize(shape.window);
  }
  open_slots_ = std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.done; });
}

Aggregator::~Aggregator() = default;

const Aggregator::Slot& Aggregator::slot_of(uint32_t slot) const {
  if (slot >= layout_.shape().slots || slot % streams_ != stream_)
    throw Error("a contribution to slot " + std::to_string(slot) + ", which does not exist");
  return slots_[slot / streams_];
}

Positions Aggregator::named(uint32_t worker, uint32_t number, uint32_t round) const {
  const Slot& slot = slot_of(number);
  check_awaited(slot, worker, round);
  // Earlier ones went with the worker's last contribution.
  return {slot.named[worker].ahead.data(), slot.named[worker].first};
}

void Aggregator::check_awaited(const Slot& slot, uint32_t worker, uint32_t round) const {
  if (worker >= workers_ || slot.done || round != slot.round || !slot.awaited[worker] ||
      (ordered_ && slot.held[worker].present))
    throw Error("an unexpected contribution of rank " + std::to_string(worker) + " to round " +
                std::to_string(round) + " of slot " + std::to_string(slot.number) +
                ", which is in round " + std::to_string(slot.round));
}

void Aggregator::check(const Slot& slot, uint32_t worker, const Frame& frame) const {
  check_awaited(slot, worker, frame.round);
  size_t index = 0;
  for (const BlockRef& block : frame.blocks) {
    index = slot.find(index, block.position);
    if (index == slot.window.size() || slot.window[index] != block.position)
      throw Error("rank " + std::to_string(worker) + " sent a block that is not in the window");
  }
  const uint64_t named = std::max(slot.hi, slot.named[worker].bound);
  if (frame.bound <= slot.hi || frame.bound < named ||
      (frame.bound != kEnd && frame.bound > layout_.positions(slot.number)) ||
      (!frame.ahead.empty() && (frame.ahead.front() < named || frame.ahead.back() >= frame.bound ||
                                elements_at(slot, frame.ahead.back()) == 0)))
    throw Error("rank " + std::to_string(worker) + " names blocks that it cannot have");
}

uint32_t Aggregator::elements_at(const Slot& slot, uint64_t position) const {
  return layout_.elements_of(layout_.block_at(index_, slot.number, position));
}

void Aggregator::on_contribution(uint32_t worker, const Frame& frame, Sink& sink) {
  Slot& slot = slot_of(frame.slot);
  check(slot, worker, frame);
  if (!ordered_) {
    sum(slot, worker, frame);
  } else if (worker != slot.first_awaited) {
    hold(slot.held[worker], frame);
  } else {
    sum(slot, worker, frame);
    for (; slot.first_awaited < workers_; ++slot.first_awaited) {
      if (!slot.awaited[slot.first_awaited]) continue;
      Held& held = slot.held[slot.first_awaited];
      if (!held.present) break;
      sum(slot, slot.first_awaited, held.frame);
      held = Held();
    }
  }
  if (slot.missing == 0) finish_round(slot, sink);
}

void Aggregator::hold(Held& held, const Frame& frame) const {
  ask_for_memory();
  held.present = true;
  held.frame = frame;
  for (const BlockRef& block : frame.blocks) {
    held.bytes.insert(held.bytes.end(), block.data, block.data + block.bytes);
    if (block.offsets)
      held.offsets.insert(held.offsets.end(), block.offsets,
                          block.offsets + block.bytes / element_);
  }
  const uint8_t* data = held.bytes.data();
  const uint32_t* offsets = held.offsets.data();
  for (BlockRef& block : held.frame.blocks) {
    block.data = data;
    data += block.bytes;
    if (!block.offsets) continue;
    block.offsets = offsets;
    offsets += block.bytes / element_;
  }
}

void Aggregator::sum(Slot& slot, uint32_t worker, const Frame& frame) {
  Version& version = slot.version();
  OMNIHVD_INVARIANT(!version.lent);
  size_t index = 0;
  for (const BlockRef& block : frame.blocks) {
    index = slot.find(index, block.position);
    // Blocks ascend, so that only the last one can be short.
    const bool last = &block == &frame.blocks.back();
    const uint32_t n = last ? elements_at(slot, block.position) : layout_.shape().block_size;
    add(version, index, block, n);
  }
  note_ahead(slot, worker, frame);
  slot.awaited[worker] = 0;
  --slot.missing;
}

void Aggregator::add(Version& version, size_t index, const BlockRef& block, size_t n) {
  Sum& sum = version.of[index];
  const bool first = !std::exchange(sum.present, true);
  if (block.home && element_ * layout_.shape().block_size == accumulator_block_bytes_) {
    if (block.home != block.data) ops_.store(block.home, block.data, n);
    if (!first) ops_.add(block.home, accumulator(version, index), n);
    sum.home = block.home;
    return;
  }
  uint8_t* const target = sum.home ? sum.home : accumulator(version, index);
  sum.dense |= !block.packed && !block.offsets && !block.home;
  if (block.offsets && first)
    ops_.store_listed(target, block.offsets, block.data, block.bytes / element_, n);
  else if (block.offsets)
    ops_.add_listed(target, block.offsets, block.data, block.bytes / element_);
  else if (block.packed)
    (first ? ops_.store_packed : ops_.add_packed)(target, block.data, n);
  else if (block.coded && integers_)
    add_integers(version, index, block.data, n, first);
  else if (block.coded)
    add_coded(target, block.data, n, first);
  else
    (first ? ops_.store : ops_.add)(target, block.data, n);
}

void Aggregator::add_coded(uint8_t* accumulator, const uint8_t* coded, size_t n, bool first) {
  const bool as_it_is = first && decoded_.size() == accumulator_block_bytes_;
  received_.decode(coded, n, as_it_is ? accumulator : decoded_.data());
  if (!as_it_is) (first ? ops_.store : ops_.add)(accumulator, decoded_.data(), n);
}

uint8_t* Aggregator::accumulator(Version& version, size_t index) const {
  if (!version.sums) {
    ask_for_memory();
    version.sums.reset(new uint8_t[sums_bytes_]);
  }
  return version.sums.get() + index * accumulator_block_bytes_;
}

void Aggregator::note_ahead(Slot& slot, uint32_t worker, const Frame& frame) {
  Named& named = slot.named[worker];
  named.ahead.erase(named.ahead.begin(), named.ahead.begin() + named.first);
  named.ahead.insert(named.ahead.end(), frame.ahead.begin(), frame.ahead.end());
  if (integers_) {
    named.exponents.erase(named.exponents.begin(), named.exponents.begin() + named.first);
    named.exponents.insert(named.exponents.end(), frame.exponents.begin(), frame.exponents.end());
  }
  named.first = 0;
  named.bound = frame.bound;
  // Dense tensors all name the same blocks: once is enough.
  const std::vector<uint64_t>& more = frame.ahead;
  if (slot.fresh.size() < more.size() ||
      !std::equal(more.begin(), more.end(), slot.fresh.end() - more.size()))
    slot.fresh.insert(slot.fresh.end(), more.begin(), more.end());
}

void Aggregator::finish_round(Slot& slot, Sink& sink) {
  std::sort(slot.fresh.begin(), slot.fresh.end());
  slot.fresh.erase(std::unique(slot.fresh.begin(), slot.fresh.end()), slot.fresh.end());
  united_.clear();
  std::set_union(slot.pending.begin(), slot.pending.end(), slot.fresh.begin(), slot.fresh.end(),
                 std::back_inserter(united_));
  slot.pending.swap(united_);
  slot.fresh.clear();
  if (below_) return contribute(slot, sink);
  slot.result_ready = true;
  // The next round is summed into the other version, and may begin as soon as a worker has this
  // round's result.
  if (!slot.versions[(slot.round + 1) % 2].lent) send_result(slot, sink);
}

uint64_t Aggregator::known(const Slot& slot) {
  uint64_t least = kEnd;
  for (const Named& named : slot.named) least = std::min(least, named.bound);
  return least;
}

// Opens the next window: the blocks below every worker's bound, as many as there is room for.
void Aggregator::choose_window(Slot& slot) {
  const uint64_t bound = known(slot);
  const auto first = slot.pending.begin();
  const auto last = std::lower_bound(first, slot.pending.end(), bound);
  const size_t room = rarely(Rare::short_window) ? 1 : layout_.shape().window;
  const size_t blocks = std::min<size_t>(last - first, room);
  if (first + blocks != last)
    open_window(slot, first[blocks]);
  else if (bound != kEnd)
    open_window(slot, bound);
  else
    open_window(slot, blocks ? first[blocks - 1] + 1 : kEnd);
}

void Aggregator::open_window(Slot& slot, uint64_t hi) {
  const auto first = slot.pending.begin();
  const auto last = std::lower_bound(first, slot.pending.end(), hi);
  slot.window.assign(first, last);
  slot.pending.erase(first, last);
  slot.lo = slot.hi;
  slot.hi = hi;
  slot.missing = 0;
  slot.first_awaited = workers_;
  for (uint32_t worker = 0; worker < workers_; ++worker) {
    Named& named = slot.named[worker];
    bool speaks = slot.hi != kEnd && named.bound == slot.hi;
    for (; named.first < named.ahead.size() && named.ahead[named.first] < slot.hi; ++named.first)
      speaks = true;
    slot.awaited[worker] = speaks;
    slot.missing += speaks;
    if (speaks) slot.first_awaited = std::min(slot.first_awaited, worker);
  }
  ++slot.round;
  if (slot.hi == kEnd) {
    slot.done = true;
    --open_slots_;
  }
}

// Puts this round's sums into the next frame; its blocks refer to their memory.
void Aggregator::take_sums(Slot& slot) {
  Version& version = slot.version();
  said_.clear(slot.number, slot.round);
  size_t packed_used = 0;
  BlockCursor cursor(layout_, index_, slot.number);
  for (size_t index = 0; index < slot.window.size(); ++index) {
    const Sum sum_of = std::exchange(version.of[index], Sum());
    if (!sum_of.present) continue;
    const uint64_t position = slot.window[index];
    const uint32_t n = cursor.elements_at(position);
    uint8_t* sum = sum_of.home ? sum_of.home : accumulator(version, index);
    ops_.finish(sum, sum, n);
    if (!version.no_numbers.empty() && version.no_numbers.count(index)) {
      said_.blocks.push_back(with_no_numbers(version, index, position, n, packed_used));
      packed_used += said_.blocks.back().bytes;
      continue;
    }
    // Sums that stay in this process are not encoded.
    const bool goes = !layout_.shape().for_one();
    const bool packed = goes && !sum_of.dense && to_send_.packs(n, ops_.count_nonzero(sum, n));
    if (!version.packed && (packed || (goes && layout_.shape().sums_codec()))) {
      ask_for_memory();
      version.packed.reset(new uint8_t[packed_bytes_]);
    }
    uint8_t* const made = version.packed.get() + packed_used;
    const size_t bytes = packed ? ops_.pack(sum, n, made)
                         : goes ? to_send_.encode(cursor.block_at(position), sum, n, made)
                                : 0;
    packed_used += bytes;
    if (bytes > 0)
      said_.blocks.push_back({position, made, uint32_t(bytes), packed,
                              packed ? nullptr : sum_of.home, nullptr, !packed});
    else
      said_.blocks.push_back({position, sum, uint32_t(n * element_), false, sum_of.home});
  }
  version.no_numbers.clear();
  version.lent = true;
  version.lent_round = slot.round;
}

void Aggregator::send_result(Slot& slot, Sink& sink) {
  slot.result_ready = false;
  take_sums(slot);
  choose_window(slot);
  said_.bound = slot.hi;
  if (integers_) {
    said_.ahead = slot.window;
    gather_exponents(slot, &said_);
  }
  sink.result(said_);
}

void Aggregator::released(uint32_t number, uint32_t round, Sink& sink) {
  Slot& slot = slot_of(number);
  slot.take_back(round);
  if (slot.result_ready) send_result(slot, sink);
}

std::vector<uint32_t> Aggregator::awaited() const {
  std::vector<uint32_t> workers;
  for (uint32_t worker = 0; worker < workers_; ++worker)
    if (std::any_of(slots_.begin(), slots_.end(), [this, worker](const Slot& slot) {
          return !slot.done && !slot.result_ready && slot.awaited[worker] &&
                 !(ordered_ && slot.held[worker].present);
        }))
      workers.push_back(worker);
  return workers;
}

size_t Aggregator::accumulator_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_)
    for (const Version& version : slot.versions)
      bytes += (version.sums ? sums_bytes_ : 0) + (version.packed ? packed_bytes_ : 0);
  return bytes;
}

}  // namespace omnihvd
