#include "nccl/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr uint64_t kBase = 256;  // alignment to lines of memory and of PCIe

constexpr uint64_t round_up(uint64_t bytes, uint64_t to = kBase) {
  return (bytes + to - 1) / to * to;
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
  const uint64_t record_bytes = round_up(blocks * sizeof(kernels::Record));
  const uint64_t data_bytes = round_up(elements * size_of(dtype));
  bitmap = sizeof(kernels::Totals);
  counters_bytes = bitmap + round_up(blocks, 64) / 8;
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

void Staging::make_room(const StagingLayout& room) {
  if (room.device_bytes <= device_bytes_ && room.host_bytes <= host_bytes_) return;
  auto set = std::make_shared<StagingSet>(room);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& old : std::exchange(sets_, {})) outgrown_.push_back(std::move(old));
  sets_.push_back(std::move(set));
  device_bytes_ = room.device_bytes;
  host_bytes_ = room.host_bytes;
}

Staging::Use Staging::acquire(const StagingLayout& layout, CuStream stream) {
  OMNIHVD_INVARIANT(layout.device_bytes <= device_bytes_ && layout.host_bytes <= host_bytes_);
  const size_t chosen = choose(stream);
  std::shared_ptr<StagingSet> set;
  if (chosen < sets_.size()) {
    set = sets_[chosen];
  } else {
    StagingLayout room = layout;
    room.device_bytes = device_bytes_;
    room.host_bytes = host_bytes_;
    try {
      set = std::make_shared<StagingSet>(room);
    } catch (const Error&) {  // one set is enough: the streams then take turns
      set = sets_.front();
    }
  }
  check_cuda(cuda().stream_wait_event(stream, set->free, 0), "cuStreamWaitEvent");
  set->stream = stream;

  const std::lock_guard<std::mutex> lock(mutex_);
  sets_.erase(std::remove(sets_.begin(), sets_.end(), set), sets_.end());
  sets_.push_back(set);  // in the order of their last uses
  ++set->number;
  if (released_) {
    const std::lock_guard<std::mutex> head(set->mutex);
    set->release_until(set->number);
  }
  return {set, set->number};
}

// Chooses a stream's own set, or an idle one, or a new one (index: the number of sets), or the one
// not used for the longest time.
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
      // begin() reports, or has reported, that there is no result. An earlier collective's scatter
      // may be reading the rest of the head.
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

StagedCollective::StagedCollective(Staging::Use use, const StagingLayout& where)
    : set_(std::move(use.set)),
      number_(use.number),
      where_(where),
      bitmap_(set_->at<uint8_t>(where.counters + where.bitmap)),
      data_(set_->at<uint8_t>(where.in_data)),
      out_records_(set_->at<kernels::Record>(where.out_records)),
      out_data_(set_->at<uint8_t>(where.out_data)),
      places_(std::min<uint64_t>(kernels::kTileUnit, where.block_size * size_of(where.dtype))) {}

// Every scatter follows its collective's begin(). So whenever its stream is released, and by any
// thread, it finds the whole result, or that there is none.
bool StagedCollective::begin() {
  const std::lock_guard<std::mutex> lock(set_->mutex);
  set_->head().status = 1;
  set_->head().out_count = kernels::kNoResult;
  return !set_->released(number_);
}

// Builds the index, because records are unordered.
void StagedCollective::index() {
  std::call_once(indexed_, [this] {
    const auto* const totals = set_->at<const kernels::Totals>(where_.counters);
    const auto* const records = set_->at<const kernels::Record>(where_.in_records);
    const uint64_t room = where_.out_records - where_.in_data;
    std::vector<uint64_t>& place_of = set_->place_of;
    if (place_of.size() < where_.blocks) place_of.resize(where_.blocks);
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
  std::memcpy(out_data_ + at, sum.data, sum.bytes);
}

void StagedCollective::end(bool failed) {
  const std::lock_guard<std::mutex> lock(set_->mutex);
  if (set_->released(number_)) return;  // another collective now owns the head
  if (!failed) {
    set_->head().status = 0;
    set_->head().out_count = out_count_;
  }
  set_->release_until(number_);
}

}  // namespace omnihvd
