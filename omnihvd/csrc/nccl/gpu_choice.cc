#include "nccl/gpu_choice.h"

#include <algorithm>

namespace omnihvd {
namespace {

// Estimates, to be measured.
constexpr double kLook_s = 50e-6;          // an allgather, and three kernels
constexpr double kUnion_s = 60e-6;         // an empty allreduce, and four kernels
constexpr double kDeviceBytes_s = 1.5e12;  // bandwidth of device memory
constexpr double kBetter = 0.9;            // a union must take less than this share of NCCL's time
constexpr double kNearlyAll = 0.9;
constexpr double kOtherLevels = 0.93;  // change levels below this share of the present ones' time
constexpr uint64_t kFollows = 8;       // a capacity that differs by less than 1/8 stays
constexpr size_t kLooks = 8, kTimes = 4, kSums = 100, kOverflows = 2;
constexpr uint32_t kBarred = 32;

template <typename T>
void keep(std::deque<T>& last, T value, size_t most) {
  last.push_back(value);
  if (last.size() > most) last.pop_front();
}

double least(const std::deque<double>& times) {
  return times.empty() ? 0 : *std::min_element(times.begin(), times.end());
}

}  // namespace

double estimate_look(uint64_t bytes) {
  return kLook_s + static_cast<double>(bytes) / kDeviceBytes_s;
}

double estimate_union(uint64_t bytes, uint64_t summed, double original) {
  const auto all = static_cast<double>(bytes), some = static_cast<double>(summed);
  return kUnion_s + 4 * some / kDeviceBytes_s + some / all * original;
}

void UnionChooser::saw(const Seen& seen) {
  Known& known = known_[seen.sum];
  if (known.blocks == 0) {
    known.planned = seen.capacity;
    known.two_levels = seen.capacity > 0 && levels_ == Hierarchy::on;
  }
  known.bytes = seen.bytes, known.blocks = seen.blocks;
  keep(known.united, seen.united, kLooks);
  known.fresh = true;
  if (seen.capacity == 0) {
    if (known.barred > 0) --known.barred;
    return;
  }
  keep(known.overflowed, seen.united > seen.capacity, kSums);
  if (std::count(known.overflowed.begin(), known.overflowed.end(), true) < long(kOverflows)) return;
  known.overflowed.clear();
  known.barred = kBarred;
}

void UnionChooser::took(uint32_t sum, How how, double seconds) {
  keep(known_[sum].times[how], seconds, kTimes);
}

// A quarter more than the recent unions.
uint64_t UnionChooser::wanted(const Known& known) const {
  const uint64_t most = *std::max_element(known.united.begin(), known.united.end());
  if (known.barred > 0 || double(most) > kNearlyAll * double(known.blocks)) return 0;
  const uint64_t capacity = std::min((most + most / 4 + 63) / 32 * 32, known.blocks);
  if (setting_ == Way::unite) return capacity;
  const double original = least(known.times[kOriginal]);
  if (original == 0) return 0;
  double united = least(known.times[kOneLevel]);
  if (const double other = least(known.times[kTwoLevels]); other > 0)
    united = united > 0 ? std::min(united, other) : other;
  if (known.planned == 0 || united == 0)
    united = estimate_union(known.bytes, known.bytes / known.blocks * capacity, original);
  return estimate_look(known.bytes) + united < kBetter * original ? capacity : 0;
}

// Tries one level first, then two, and then uses the faster.
bool UnionChooser::wants_two_levels(const Known& known) const {
  if (levels_ != Hierarchy::automatic) return levels_ == Hierarchy::on;
  for (const How how : {kOneLevel, kTwoLevels})
    if (known.times[how].size() < kTimes) return how == kTwoLevels;
  const double one = least(known.times[kOneLevel]), two = least(known.times[kTwoLevels]);
  return known.two_levels ? one > kOtherLevels * two : two < kOtherLevels * one;
}

std::vector<UnionChange> UnionChooser::changes(size_t most) {
  std::vector<UnionChange> all;
  for (auto& [sum, known] : known_) {
    if (all.size() == most) break;
    if (!known.fresh) continue;
    known.fresh = false;
    const uint64_t want = wanted(known), now = known.planned;
    const uint64_t most = now + now / kFollows, least = now - now / kFollows;
    const bool same = now == 0 || want == 0 ? want == now : least < want && want <= most;
    const bool two_levels = want > 0 && wants_two_levels(known);
    if (same && two_levels == known.two_levels) continue;
    if (want == 0 && now > 0) {  // the union was slower, or has become dense
      const bool timed = !known.times[kOneLevel].empty() || !known.times[kTwoLevels].empty();
      if (timed && setting_ != Way::unite) known.barred = kBarred;
      for (const How how : {kOneLevel, kTwoLevels}) known.times[how].clear();
    }
    if (!same) known.planned = want;
    known.two_levels = two_levels;
    all.push_back({sum, known.planned, two_levels});
  }
  return all;
}

void UnionChooser::refused(const std::vector<UnionChange>& changes) {
  for (const UnionChange& change : changes) {
    Known& known = known_[change.sum];
    known.planned = ~uint64_t(0);  // no capacity equals it
    known.fresh = true;
  }
}

}  // namespace omnihvd
