#include "nccl/gpu_choice.h"

#include <algorithm>

namespace omnihvd {
namespace {

constexpr uint64_t kNearlyAll = UnionChoice::kWhole * 9 / 10;
constexpr uint64_t kFollows = 8;           // a share that differs by less than 1/8 stays
constexpr uint64_t kBetter = 105;          // in 100: the least gain
constexpr size_t kUnited = 8, kLooks = 2;  // unions that a share is for; while NCCL sums
constexpr size_t kSums = 100, kOverflows = 2;
constexpr uint32_t kBarred = 8;

// 2^(i/16), in units of 2^-16.
constexpr uint64_t kSixteenths[] = {65536, 68438, 71468,  74632,  77936,  81386,  84990,  88752,
                                    92682, 96785, 101070, 105545, 110218, 115098, 120194, 125515};
constexpr uint64_t kMost = 254;  // 60 ms

// A time is coded by 1 to kMost, as 2^((code - 1) / 16) us.
uint64_t decoded(uint64_t code) {
  return code == 0 ? 0 : (1000 * kSixteenths[(code - 1) % 16] << (code - 1) / 16) >> 16;
}
uint32_t coded(uint64_t ns) {
  if (ns == 0) return 0;
  uint32_t code = 1;
  while (code < kMost && decoded(code) < ns) ++code;
  return code;
}

}  // namespace

uint32_t trailer_of(bool alone, const GpuTimes& times) {
  const uint32_t look = times.look == 0 ? 0 : 255 - coded(times.look);
  return uint32_t(alone) | look << 8 | coded(times.original) << 16 | coded(times.united) << 24;
}
bool is_alone(uint32_t trailer) { return (trailer & 0xff) != 0; }
GpuTimes times_of(uint32_t trailer) {
  const uint32_t look = trailer >> 8 & 0xff;
  return {look == 0 ? 0 : decoded(255 - look), decoded(trailer >> 16 & 0xff),
          decoded(trailer >> 24)};
}

UnionChoice::UnionChoice(const GpuModel& model, uint64_t bytes, uint64_t block_bytes,
                         uint64_t part_bytes, bool always)
    : model_(model),
      bytes_(bytes),
      blocks_(bytes / block_bytes + 1),
      part_bytes_(part_bytes),
      always_(always),
      share_(always ? kWhole : 0) {}

void UnionChoice::saw(const Seen& seen) {
  ++seen_;
  united_.push_back(seen.united);
  while (united_.size() > (share_ > 0 ? kUnited : kLooks)) united_.pop_front();
  if (seen.times.look > 0) times_.look = seen.times.look;
  if (seen.times.original > 0) times_.original = seen.times.original;
  // Sums that were called before the share changed say nothing about the present one.
  if (share_ > 0 && seen.share == share_) {
    times_.united = seen.times.united;
    overflowed_.push_back(seen.overflowed);
    if (overflowed_.size() > kSums) overflowed_.pop_front();
    if (std::count(overflowed_.begin(), overflowed_.end(), true) >= long(kOverflows)) {
      overflowed_.clear();
      barred_ = kBarred;
    }
  } else if (share_ == 0 && barred_ > 0) {
    --barred_;
  }
  const uint64_t want = wanted(), most = share_ + share_ / kFollows;
  const bool same =
      share_ == 0 || want == 0 ? want == share_ : share_ - share_ / kFollows < want && want <= most;
  if (same) return;
  if (want == 0 && times_.united > 0) barred_ = kBarred;  // it was slower
  share_ = want;
  times_.united = 0;
}

// A quarter more than the recent unions.
uint64_t UnionChoice::wanted() const {
  const uint64_t most = *std::max_element(united_.begin(), united_.end());
  if (barred_ > 0 || most > kNearlyAll) return 0;
  const uint64_t share = std::min(most + most / 4 + 1, kWhole);
  return always_ || pays(share) ? share : 0;
}

bool UnionChoice::pays(uint64_t share) const {
  const uint64_t original = times_.original;
  if (original == 0) return false;
  const uint64_t summed = bytes_ * share / kWhole;
  const uint64_t look = times_.look > 0 ? times_.look : model_.look(bytes_, blocks_, original);
  const uint64_t united =
      times_.united > 0 ? times_.united : model_.united(bytes_, summed, part_bytes_, original);
  return (look + united) * kBetter <= original * 100;
}

}  // namespace omnihvd
