#include "shims/nccl/gpu_choice.h"

#include <algorithm>

namespace omnihvd {
namespace {

// Guesses, to be measured.
constexpr double kLook_s = 50e-6;          // an allgather, and three kernels
constexpr double kUnion_s = 60e-6;         // an allreduce of nothing, and four
constexpr double kDeviceBytes_s = 1.5e12;  // memory of the device
constexpr double kBetter = 0.9;            // more than this share of NCCL's time is worth no change
constexpr double kNearlyAll = 0.9;
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
  if (known.blocks == 0) known.planned = seen.capacity;
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

void UnionChooser::took(uint32_t sum, bool united, double seconds) {
  keep(known_[sum].times[united], seconds, kTimes);
}

// A quarter more than there has been lately.
uint64_t UnionChooser::wanted(const Known& known) const {
  const uint64_t most = *std::max_element(known.united.begin(), known.united.end());
  if (known.barred > 0 || double(most) > kNearlyAll * double(known.blocks)) return 0;
  const uint64_t capacity = std::min((most + most / 4 + 63) / 32 * 32, known.blocks);
  if (setting_ == Way::unite) return capacity;
  const SumTimes measured{least(known.times[0]), least(known.times[1])};
  if (measured.original == 0) return 0;
  double united = measured.united;
  if (known.planned == 0 || united == 0)
    united = estimate_union(known.bytes, known.bytes / known.blocks * capacity, measured.original);
  return estimate_look(known.bytes) + united < kBetter * measured.original ? capacity : 0;
}

std::vector<UnionChange> UnionChooser::changes(size_t most) {
  std::vector<UnionChange> all;
  for (auto& [sum, known] : known_) {
    if (all.size() == most) break;
    if (!known.fresh) continue;
    known.fresh = false;
    const uint64_t want = wanted(known), now = known.planned;
    const bool same = now == 0 || want == 0 ? want == now : want <= now + now / 8 && want > now / 2;
    if (same) continue;
    if (want == 0 && !known.times[1].empty()) {  // it was slower, or has become dense
      known.times[1].clear();
      if (setting_ != Way::unite) known.barred = kBarred;
    }
    known.planned = want;
    all.push_back({sum, want});
  }
  return all;
}

void UnionChooser::refused(const std::vector<UnionChange>& changes) {
  for (const UnionChange& change : changes) {
    Known& known = known_[change.sum];
    known.planned = ~uint64_t(0);  // unlike any
    known.fresh = true;
  }
}

}  // namespace omnihvd
