#include "protocol/aggregator.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "protocol/tensor.h"

namespace omnihvd {

// Room for the sums of one round.
struct Aggregator::Version {
  std::vector<uint8_t> sums;         // [index in window][accumulator block]
  std::vector<uint8_t> packed;       // packed results, while the frame is being sent
  std::vector<uint8_t> touched;      // [index in window]: some worker had this block
  bool lent = false;                 // a result that refers to `sums` is being sent
};

struct Aggregator::Named {
  std::deque<uint64_t> ahead;  // positions >= the window's end, ascending
  uint64_t bound = 0;          // all below have been named
};

struct Aggregator::Held {
  bool present = false;
  Frame frame;
  std::vector<uint8_t> bytes;
};

struct Aggregator::Slot {
  uint32_t number = 0;
  uint32_t round = 0;
  uint64_t lo = 0, hi = 0;
  std::vector<uint64_t> window;   // the blocks of this round; in round 0 all positions
  std::vector<uint64_t> pending;  // named beyond the window by anybody: ascending, distinct
  std::vector<uint64_t> fresh;    // named in this round, unsorted
  std::vector<Named> named;       // [worker]
  std::vector<uint8_t> awaited;   // [worker]
  uint32_t missing = 0;           // how many are awaited
  std::vector<Held> held;         // [worker], if ordered
  bool result_ready = false;      // summed, but waits for the other version
  bool done = false;
  Version versions[2];
  Version& version() { return versions[round % 2]; }
};

Aggregator::Aggregator(const Layout& layout, uint32_t index, uint32_t workers, uint32_t stream,
                       uint32_t streams, bool ordered)
    : layout_(layout),
      ops_(block_ops(layout.shape().dtype)),
      index_(index),
      workers_(workers),
      stream_(stream),
      streams_(streams),
      ordered_(ordered),
      block_bytes_(layout.shape().block_bytes()),
      element_(size_of(layout.shape().dtype)),
      accumulator_block_bytes_(size_t(layout.shape().block_size) *
                               accumulator_size_of(layout.shape().dtype)) {
  const Shape& shape = layout.shape();
  for (uint32_t number = stream; number < shape.slots; number += streams) {
    Slot& slot = slots_.emplace_back();
    slot.number = number;
    slot.hi = std::min<uint64_t>(shape.window, layout.positions(number));
    slot.done = slot.hi == 0;
    slot.window.resize(slot.hi);
    for (uint64_t i = 0; i < slot.hi; ++i) slot.window[i] = i;
    slot.named.resize(workers);
    slot.awaited.assign(workers, 1);
    slot.missing = workers;
    if (ordered) slot.held.resize(workers);
    for (Version& version : slot.versions) version.touched.assign(shape.window, 0);
  }
  open_slots_ = std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.done; });
}

Aggregator::~Aggregator() = default;

Aggregator::Slot& Aggregator::slot_of(uint32_t slot) {
  if (slot >= layout_.shape().slots || slot % streams_ != stream_)
    throw Error("a contribution to slot " + std::to_string(slot) + ", which does not exist");
  return slots_[slot / streams_];
}

void Aggregator::check(const Slot& slot, uint32_t worker, const Frame& frame) const {
  if (worker >= workers_ || slot.done || frame.round != slot.round || !slot.awaited[worker] ||
      (ordered_ && slot.held[worker].present))
    throw Error("an unexpected contribution of rank " + std::to_string(worker) + " to round " +
                std::to_string(frame.round) + " of slot " + std::to_string(slot.number) +
                ", which is in round " + std::to_string(slot.round));
  const uint64_t end = layout_.positions(slot.number);
  const uint64_t named = slot.round == 0 ? slot.hi : slot.named[worker].bound;
  if ((frame.bound != kEnd && (frame.bound > end || frame.bound < named)) ||
      (!frame.ahead.empty() &&
       (frame.ahead.front() < std::max(named, slot.hi) ||
        frame.ahead.back() >= std::min(end, frame.bound))))
    throw Error("rank " + std::to_string(worker) + " names blocks that it cannot have");
}

void Aggregator::on_contribution(uint32_t worker, const Frame& frame, Sink& sink) {
  Slot& slot = slot_of(frame.slot);
  check(slot, worker, frame);
  if (!ordered_) {
    sum(slot, worker, frame);
    slot.awaited[worker] = 0;
    --slot.missing;
  } else {
    Held& held = slot.held[worker];
    held.present = true;
    held.frame = frame;
    held.bytes.clear();
    for (const BlockRef& block : frame.blocks)
      held.bytes.insert(held.bytes.end(), block.data, block.data + block.bytes);
    const uint8_t* data = held.bytes.data();
    for (BlockRef& block : held.frame.blocks) {
      block.data = data;
      data += block.bytes;
    }
    for (uint32_t next = 0; next < workers_; ++next) {
      if (!slot.awaited[next]) continue;
      if (!slot.held[next].present) break;
      sum(slot, next, slot.held[next].frame);
      slot.held[next].present = false;
      slot.awaited[next] = 0;
      --slot.missing;
    }
  }
  if (slot.missing == 0) finish_round(slot, sink);
}

void Aggregator::sum(Slot& slot, uint32_t worker, const Frame& frame) {
  Version& version = slot.version();
  OMNIHVD_INVARIANT(!version.lent);
  if (!frame.blocks.empty() && version.sums.empty())
    version.sums.resize(layout_.shape().window * accumulator_block_bytes_);
  size_t index = 0;
  for (const BlockRef& block : frame.blocks) {
    while (index < slot.window.size() && slot.window[index] < block.position) ++index;
    const uint32_t n = layout_.elements_of(layout_.block_at(index_, slot.number, block.position));
    if (index == slot.window.size() || slot.window[index] != block.position || n == 0)
      throw Error("rank " + std::to_string(worker) + " sent a block that is not in the window");
    uint8_t* accumulator = version.sums.data() + index * accumulator_block_bytes_;
    const bool first = !version.touched[index];
    version.touched[index] = 1;
    if (block.packed)
      (first ? ops_.store_packed : ops_.add_packed)(accumulator, block.data, n);
    else
      (first ? ops_.store : ops_.add)(accumulator, block.data, n);
  }
  note_ahead(slot, worker, frame);
}

void Aggregator::note_ahead(Slot& slot, uint32_t worker, const Frame& frame) {
  Named& named = slot.named[worker];
  named.ahead.insert(named.ahead.end(), frame.ahead.begin(), frame.ahead.end());
  named.bound = frame.bound;
  slot.fresh.insert(slot.fresh.end(), frame.ahead.begin(), frame.ahead.end());
}

void Aggregator::finish_round(Slot& slot, Sink& sink) {
  std::sort(slot.fresh.begin(), slot.fresh.end());
  const size_t old = slot.pending.size();
  slot.pending.insert(slot.pending.end(), slot.fresh.begin(), slot.fresh.end());
  std::inplace_merge(slot.pending.begin(), slot.pending.begin() + old, slot.pending.end());
  slot.pending.erase(std::unique(slot.pending.begin(), slot.pending.end()), slot.pending.end());
  slot.fresh.clear();
  slot.result_ready = true;
  // The next round is summed into the other version, and may begin as soon as a worker has this
  // round's result.
  if (!slot.versions[(slot.round + 1) % 2].lent) send_result(slot, sink);
}

// The next window: the blocks below every worker's bound, as many as there is room for.
void Aggregator::choose_window(Slot& slot) {
  uint64_t known = kEnd;
  for (const Named& named : slot.named) known = std::min(known, named.bound);
  const auto first = slot.pending.begin();
  const auto last = std::lower_bound(first, slot.pending.end(), known);
  const size_t blocks = std::min<size_t>(last - first, layout_.shape().window);
  slot.window.assign(first, first + blocks);
  slot.lo = slot.hi;
  if (first + blocks != last)
    slot.hi = first[blocks];
  else if (known != kEnd)
    slot.hi = known;
  else
    slot.hi = blocks ? slot.window.back() + 1 : kEnd;
  slot.pending.erase(first, first + blocks);
  slot.missing = 0;
  for (uint32_t worker = 0; worker < workers_; ++worker) {
    Named& named = slot.named[worker];
    bool speaks = slot.hi != kEnd && named.bound == slot.hi;
    while (!named.ahead.empty() && named.ahead.front() < slot.hi) {
      named.ahead.pop_front();
      speaks = true;
    }
    slot.awaited[worker] = speaks;
    slot.missing += speaks;
  }
}

void Aggregator::send_result(Slot& slot, Sink& sink) {
  slot.result_ready = false;
  Version& version = slot.version();
  result_.clear(slot.number, slot.round);
  if (!version.sums.empty()) version.packed.resize(layout_.shape().window * block_bytes_);
  size_t packed_used = 0;
  for (size_t index = 0; index < slot.window.size(); ++index) {
    if (!version.touched[index]) continue;
    version.touched[index] = 0;
    const uint64_t position = slot.window[index];
    const uint32_t n = layout_.elements_of(layout_.block_at(index_, slot.number, position));
    uint8_t* sum = version.sums.data() + index * accumulator_block_bytes_;
    ops_.finish(sum, sum, n);
    if (worth_packing(n, ops_.count_nonzero(sum, n), element_)) {
      uint8_t* packed = version.packed.data() + packed_used;
      const size_t bytes = ops_.pack(sum, n, packed);
      packed_used += bytes;
      result_.blocks.push_back({position, packed, uint32_t(bytes), true});
    } else {
      result_.blocks.push_back({position, sum, uint32_t(n * element_), false});
    }
  }
  choose_window(slot);
  result_.bound = slot.hi;
  version.lent = true;
  ++slot.round;
  if (slot.hi == kEnd) {
    slot.done = true;
    --open_slots_;
  }
  sink.result(result_);
}

void Aggregator::released(uint32_t number, uint32_t round, Sink& sink) {
  Slot& slot = slot_of(number);
  Version& version = slot.versions[round % 2];
  OMNIHVD_INVARIANT(version.lent);
  version.lent = false;
  if (slot.result_ready) send_result(slot, sink);
}

std::vector<uint32_t> Aggregator::awaited() const {
  std::vector<uint32_t> workers;
  for (uint32_t worker = 0; worker < workers_; ++worker)
    if (std::any_of(slots_.begin(), slots_.end(), [worker](const Slot& slot) {
          return !slot.done && !slot.result_ready && slot.awaited[worker];
        }))
      workers.push_back(worker);
  return workers;
}

size_t Aggregator::accumulator_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_)
    for (const Version& version : slot.versions)
      bytes += version.sums.capacity() + version.packed.capacity();
  return bytes;
}

}  // namespace omnihvd
