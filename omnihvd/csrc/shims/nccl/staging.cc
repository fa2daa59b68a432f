#include "shims/nccl/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr uint64_t round_up(uint64_t bytes, uint64_t to = 16) { return (bytes + to - 1) / to * to; }

// out = in / divisor, n elements anywhere in memory.
template <typename T>
void divide(const uint8_t* in, uint8_t* out, size_t n, double divisor) {
  const T by = static_cast<T>(divisor);
  for (size_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    value /= by;
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

void divide(DType dtype, const uint8_t* in, uint8_t* out, size_t n, double divisor) {
  if (dtype == DType::f32) return divide<float>(in, out, n, divisor);
  if (dtype == DType::f64) return divide<double>(in, out, n, divisor);
  const BlockOps& ops = block_ops(dtype);  // half precision
  constexpr size_t kPiece = 256;
  float wide[kPiece];
  for (size_t done = 0; done < n; done += kPiece) {
    const size_t piece = std::min(kPiece, n - done);
    ops.store(wide, in + 2 * done, piece);
    for (size_t i = 0; i < piece; ++i) wide[i] /= static_cast<float>(divisor);
    ops.finish(out + 2 * done, wide, piece);
  }
}

}  // namespace

StagingLayout::StagingLayout(uint64_t n, DType type, uint32_t elements_of_block,
                             uint32_t ranks_of_host)
    : elements(n),
      blocks((n + elements_of_block - 1) / elements_of_block),
      dtype(type),
      block_size(elements_of_block),
      local_ranks(ranks_of_host) {
  const uint64_t status_bytes = local_ranks * sizeof(int32_t);
  const uint64_t record_bytes = blocks * sizeof(kernels::Record);
  // Each block takes whole 16 bytes, as all but the last do anyway.
  const uint64_t data_bytes = round_up(elements * size_of(dtype));
  bitmap = sizeof(kernels::Totals);
  counters_bytes = bitmap + round_up(blocks, 32) / 8;
  device_counters = round_up(status_bytes);
  device_bytes = device_counters + counters_bytes;
  counters = round_up(sizeof(StagingHead) + status_bytes);
  in_records = round_up(counters + counters_bytes);
  in_data = in_records + record_bytes;
  out_records = in_data + data_bytes;
  out_data = out_records + record_bytes;
  host_bytes = out_data + data_bytes;
}

StagingSet::StagingSet(const StagingLayout& room)
    : device_bytes(room.device_bytes),
      host_bytes(room.host_bytes),
      local_ranks(room.local_ranks),
      device(device_bytes),
      host(host_bytes) {
  std::memset(host.data(), 0, sizeof(StagingHead) + local_ranks * sizeof(int32_t));
  head().out_count = kernels::kNoResult;
  check_cuda(cuda().event_create(&free, kCuEventDisableTiming), "cuEventCreate");
}

StagingSet::~StagingSet() {
  if (free != nullptr) cuda().event_destroy(free);
}

bool StagingSet::released(uint32_t collective) const {
  return static_cast<int32_t>(collective - head().flag) <= 0;
}

void StagingSet::release_until(uint32_t collective) {
  if (!released(collective)) __atomic_store_n(&head().flag, collective, __ATOMIC_RELEASE);
}

Staging::Use Staging::acquire(const StagingLayout& needed, CuStream stream) {
  const size_t chosen = choose(stream);
  std::shared_ptr<StagingSet> set, outgrown;
  if (chosen < sets_.size()) set = sets_[chosen];
  if (!set) {
    set = std::make_shared<StagingSet>(needed);
  } else if (set->device_bytes < needed.device_bytes || set->host_bytes < needed.host_bytes) {
    // Twice of what was too small: what is outgrown is then no more than what is in use.
    StagingLayout room = needed;
    room.device_bytes = std::max(room.device_bytes, 2 * set->device_bytes);
    room.host_bytes = std::max(room.host_bytes, 2 * set->host_bytes);
    outgrown = std::exchange(set, std::make_shared<StagingSet>(room));
  }
  check_cuda(cuda().stream_wait_event(stream, set->free, 0), "cuStreamWaitEvent");
  set->stream = stream;

  const std::lock_guard<std::mutex> lock(mutex_);
  if (outgrown) outgrown_.push_back(std::move(outgrown));
  if (chosen < sets_.size()) sets_.erase(sets_.begin() + static_cast<ptrdiff_t>(chosen));
  sets_.push_back(set);  // in the order of their last uses
  ++set->number;
  if (released_) {
    const std::lock_guard<std::mutex> head(set->mutex);
    set->release_until(set->number);
  }
  return {set, set->number};
}

// A stream's own set, or an idle one, or one more (the number of sets), or the one used longest
// ago.
size_t Staging::choose(CuStream stream) const {
  for (size_t i = 0; i < sets_.size(); ++i)
    if (sets_[i]->stream == stream) return i;
  for (size_t i = 0; i < sets_.size(); ++i)
    if (cuda().event_query(sets_[i]->free) == CuResult::success) return i;
  return sets_.size() < kMost ? sets_.size() : 0;
}

void Staging::release_waiters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  released_ = true;
  for (const auto* list : {&sets_, &outgrown_}) {
    for (const auto& set : *list) {
      const std::lock_guard<std::mutex> head(set->mutex);
      // begin() says, or has said, that there is no result; the rest of the head may be what an
      // earlier collective's scatter is reading.
      set->release_until(set->number);
    }
  }
}

bool Staging::failed_on_host() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
    const volatile int32_t* const statuses = set->statuses();  // written by the device
    return std::any_of(statuses, statuses + set->local_ranks, [](int32_t s) { return s != 0; });
  });
}

std::vector<std::shared_ptr<StagingSet>> Staging::sets() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<StagingSet>> all = sets_;
  all.insert(all.end(), outgrown_.begin(), outgrown_.end());
  return all;
}

std::vector<std::shared_ptr<StagingSet>> Staging::take_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<StagingSet>> all = std::exchange(sets_, {});
  for (auto& set : std::exchange(outgrown_, {})) all.push_back(std::move(set));
  return all;
}

StagedCollective::StagedCollective(Staging::Use use, const StagingLayout& where, double divisor)
    : set_(std::move(use.set)),
      number_(use.number),
      where_(where),
      divisor_(divisor),
      data_(set_->at<uint8_t>(where.in_data)),
      out_records_(set_->at<kernels::Record>(where.out_records)),
      out_data_(set_->at<uint8_t>(where.out_data)) {}

// Every scatter comes after its collective's begin(): whenever and by whomever its stream is
// released, it finds the whole result, or that there is none.
bool StagedCollective::begin() {
  const std::lock_guard<std::mutex> lock(set_->mutex);
  set_->head().status = 1;
  set_->head().out_count = kernels::kNoResult;
  return !set_->released(number_);
}

// The records come in no order.
void StagedCollective::index() {
  std::call_once(indexed_, [this] {
    const auto* const totals = set_->at<const kernels::Totals>(where_.counters);
    const auto* const records = set_->at<const kernels::Record>(where_.in_records);
    const uint64_t room = where_.out_records - where_.in_data;
    std::vector<uint64_t>& place_of = set_->place_of;
    place_of.assign(where_.blocks, 0);
    OMNIHVD_INVARIANT(totals->records <= where_.blocks);
    for (uint64_t i = 0; i < totals->records; ++i) {
      const kernels::Record record = records[i];
      OMNIHVD_INVARIANT(record.block < where_.blocks &&
                        (record.place >> 16) + (record.place & 0xffff) <= room);
      place_of[record.block] = record.place;
    }
  });
}

void StagedCollective::put(uint64_t block, const BlockRef& sum) {
  const uint64_t at = places_.take(sum.bytes);
  const uint64_t index = out_count_.fetch_add(1, std::memory_order_relaxed);
  out_records_[index] = {block, at << 16 | sum.bytes};
  uint8_t* const out = out_data_ + at;
  if (divisor_ == 1) {
    std::memcpy(out, sum.data, sum.bytes);
    return;
  }
  const uint64_t first = block * where_.block_size;
  const uint64_t n = std::min<uint64_t>(where_.elements - first, where_.block_size);
  const size_t skip = sum.packed ? bitmap_bytes(n) : 0;
  std::memcpy(out, sum.data, skip);
  divide(where_.dtype, sum.data + skip, out + skip, (sum.bytes - skip) / size_of(where_.dtype),
         divisor_);
}

void StagedCollective::end(bool failed) {
  const std::lock_guard<std::mutex> lock(set_->mutex);
  if (set_->released(number_)) return;  // the head is another's by now
  if (!failed) {
    set_->head().status = 0;
    set_->head().out_count = out_count_;
  }
  set_->release_until(number_);
}

}  // namespace omnihvd
