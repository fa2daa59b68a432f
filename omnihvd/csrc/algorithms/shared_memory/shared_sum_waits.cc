// How ranks wait for each other, and how they end a sum that cannot continue.
#include "algorithms/shared_memory/shared_sum.h"

namespace omnihvd {

void SharedSum::announce(Step step) {
  control_.gates[step].arrive(uint32_t(ranks_));
  of(rank_).steps += 1;
}

void SharedSum::wait(Step step, uint64_t chunk) {
  Gate& gate = control_.gates[step];
  const uint32_t times = uint32_t(chunk + 1);
  if (Peers::spin([&] { return gate.open(times); }, spin_)) return;
  const SharedRank& mine = of(rank_);
  const auto progress = [&](int rank) {
    const bool left = of(rank).left != 0;  // before that it made all its steps
    if (of(rank).steps > 2 * chunk + step) return Peers::Progress::come;
    return left ? Peers::Progress::left : Peers::Progress::late;
  };
  peers_.wait([&] { return gate.open(times); },
              [&](std::chrono::milliseconds at_most) { gate.wait(times, at_most); }, progress,
              sum_text(mine.count, DType(mine.dtype), {}));
}

void SharedSum::check_same() {
  const auto text = [](const SharedRank& of) {
    return sum_text(of.count, DType(of.dtype), of.codec, of.scatters);
  };
  const SharedRank& mine = of(rank_);
  for (int rank = 0; rank < ranks_; ++rank) {
    const SharedRank& other = of(rank);
    if (other.count == mine.count && other.dtype == mine.dtype && other.codec == mine.codec &&
        other.scatters == mine.scatters)
      continue;
    peers_.fail_as_different(rank, text(other), text(mine) + disagreement(other.codec, mine.codec));
  }
}

}  // namespace omnihvd
