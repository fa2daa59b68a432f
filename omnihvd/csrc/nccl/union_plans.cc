#include "nccl/union_plans.h"

#include <algorithm>

namespace omnihvd {
namespace {

uint64_t next_power_of_two(uint64_t n) {
  uint64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

void keep(std::deque<uint64_t>& last, uint64_t value, size_t most) {
  last.push_back(std::max<uint64_t>(value, 1));
  if (last.size() > most) last.pop_front();
}

uint64_t least(const std::deque<uint64_t>& times) {
  return times.empty() ? 0 : *std::min_element(times.begin(), times.end());
}

// The first calls of a kind are looked at at growing distances.
bool is_turn(uint64_t call, uint64_t between) {
  return call > 0 && (call < between ? (call & (call - 1)) == 0 : call % between == 0);
}

}  // namespace

// Forgets the kind that was not called for the longest time, if there are too many.
UnionPlans::Known& UnionPlans::at(const UnionKey& key, uint64_t bytes, uint64_t block_bytes) {
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  if (known_.size() == kMost)
    known_.erase(std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
      return a.second.last < b.second.last;
    }));
  const UnionChoice choice(model_, bytes, block_bytes, part_bytes_, always_);
  return known_.emplace(key, Known{choice, bytes, calls_}).first->second;
}

// A sum is known by its count, its type and the counts of the two sums before it; if that has not
// been seen often, by its type and its count rounded up to a power of two: the buffers into which
// Horovod fuses tensors differ from step to step.
UnionCall UnionPlans::next(uint64_t count, DType dtype) {
  const uint64_t number = calls_++, width = size_of(dtype), about = next_power_of_two(count);
  const UnionKey exact{count, uint64_t(dtype), before_[0], before_[1]};
  const UnionKey alike{0, uint64_t(dtype), about, 0};
  before_[1] = before_[0];
  before_[0] = count;
  if (left_) return {number, {}, count * width, 0, 0, false, {}};
  at(alike, about * width, block_size_ * width).last = number;
  Known& own = at(exact, about * width, block_size_ * width);
  own.last = number;
  Known& like = known_.at(alike);
  Known& used = own.choice.is_known() ? own : like;
  const uint64_t blocks = (count + block_size_ - 1) / block_size_, share = used.choice.share();
  const uint64_t room = (blocks * share / UnionChoice::kWhole + 63) / 32 * 32;
  const bool look = share > 0 || is_turn(used.calls, kBetween) ||
                    (!own.choice.is_known() && is_turn(own.calls, kBetween));
  ++own.calls, ++like.calls;
  UnionCall call{
      number,
      &used == &own ? exact : alike,
      count * width,
      share,
      share > 0 ? std::min(room, blocks) : 0,
      look,
      {least(used.look), least(used.original), used.share == share ? least(used.united) : 0}};
  if (look)
    looks_.push_back(
        {number, blocks, share, call.capacity, call.key, &used == &own ? alike : exact});
  return call;
}

void UnionPlans::saw(uint64_t united, uint32_t trailer) {
  const Look look = looks_.front();
  looks_.pop_front();
  left_ = left_ || is_alone(trailer);
  const uint64_t share = (united * UnionChoice::kWhole + look.blocks - 1) / look.blocks;
  tell(look.used, {share, look.share, united > look.capacity, times_of(trailer)});
  tell(look.other, {share, UnionChoice::kNoShare, false, times_of(trailer)});
}

void UnionPlans::tell(const UnionKey& key, const UnionChoice::Seen& seen) {
  const auto found = known_.find(key);
  if (found == known_.end()) return;  // forgotten meanwhile, on all ranks
  Known& known = found->second;
  const uint64_t before = known.choice.share();
  known.choice.saw(seen);
  if (before > 0 && known.choice.share() == 0) known.calls = 0;
}

void UnionPlans::took(const UnionCall& call, uint64_t look_ns, uint64_t sum_ns) {
  const auto found = known_.find(call.key);
  if (found == known_.end()) return;
  Known& known = found->second;
  const auto whole = [&](uint64_t ns) {
    return std::min<uint64_t>(ns, 100'000'000) * known.bytes / call.bytes;
  };
  keep(known.look, whole(look_ns), kTimes);
  if (call.share == 0) return keep(known.original, whole(sum_ns), kTimes);
  if (known.share != call.share) known.united.clear();
  known.share = call.share;
  keep(known.united, whole(sum_ns), kTimes);
}

}  // namespace omnihvd
