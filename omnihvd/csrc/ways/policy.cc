#include "ways/policy.h"

#include <algorithm>
#include <cmath>

namespace omnihvd {
namespace {

constexpr size_t kSamples = 5;
constexpr double kHopeless = 1.3;   // an estimate of so many times the best is not tried
constexpr double kBetter = 0.93;    // of the best's time: takes its place
constexpr double kStreamRate = 4;   // a library is at most so many times as fast as streaming
constexpr double kFavour = 0.5;     // of what is only estimated
constexpr uint32_t kAgain = 64;     // sums until a way that is as good as the best is tried again
constexpr double kPerExcess = 100;  // and so many more for each time that it is slower
constexpr uint32_t kSoon = 8;       // until one is that was tried a few times only, and was close
constexpr double kClose = 0.3;      // excess over the best's time: first sums vary by as much
constexpr double kLongest = 60'000;

constexpr Way kTried[] = {Way::stream, Way::unite, Way::unite_two_step, Way::original,
                          Way::two_step};
bool is_two_step(Way way) { return way == Way::unite_two_step || way == Way::two_step; }
bool is_union(Way way) { return way == Way::unite || way == Way::unite_two_step; }

}  // namespace

bool Policy::allowed(Cell cell, Way way) const {
  if (is_two_step(way) && !two_step_) return false;
  if (cell.density == kUnknown) return way == Way::stream || way == Way::unite;  // which both tell
  return cell.density < kDense || !is_union(way);
}

void Policy::Samples::add(double value) {
  if (last.size() == kSamples) last.erase(last.begin());
  last.push_back(value);
}

double Policy::Samples::score() const {
  if (last.empty()) return 0;
  std::vector<double> sorted = last;
  const auto middle = sorted.begin() + (sorted.size() - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double Policy::score(Cell cell, Way way) const {
  const auto found = cells_.find(cell);
  return found == cells_.end() ? 0 : found->second.ways[size_t(way)].score();
}

void Policy::measured(Cell cell, Way way, uint64_t bytes, uint64_t united, double seconds) {
  Trials& trials = cells_[cell];
  trials.ways[size_t(way)].add(seconds / double(bytes));
  trials.share = double(united) / double(bytes);
}

void Policy::library_took(bool two_step, uint64_t bytes, double seconds) {
  if (bytes > 0) library_[two_step][size_class(bytes)].add(seconds / double(bytes));
}

// The library's seconds a byte at the nearest size that it has summed; 0: unknown.
double Policy::rate(bool two_step, uint64_t bytes) const {
  double found = 0;
  int nearest = kSizes;
  for (const auto& [size, samples] : library_[two_step]) {
    const int away = std::abs(size - size_class(bytes));
    if (away < nearest) {
      nearest = away;
      found = samples.score();
    }
  }
  return found;
}

// Seconds per byte of the tensor, rather too few.
double Policy::estimate(const Trials& trials, Cell cell, Way way, uint64_t bytes) const {
  const Samples& samples = trials.ways[size_t(way)];
  if (!samples.last.empty()) return samples.score();
  if (way == Way::stream) return 0;
  const double share = is_union(way) ? trials.share : 1;
  const uint64_t summed = std::max<uint64_t>(1, uint64_t(share * double(bytes)));
  double known = rate(is_two_step(way), summed);
  if (known == 0) known = rate(!is_two_step(way), summed);
  if (known > 0) return kFavour * known * share;
  const double streamed = trials.ways[size_t(Way::stream)].score();
  if (cell.density == kUnknown || trials.share <= 0) return 0;
  return streamed / std::max(trials.share, 1e-3) * share / kStreamRate;
}

Order Policy::order(Cell cell, uint64_t bytes) {
  Trials& trials = cells_[cell];
  double fastest = 0;
  for (const Way way : kTried) {
    const double score = trials.ways[size_t(way)].score();
    if (allowed(cell, way) && score > 0 && (fastest == 0 || score < fastest)) {
      fastest = score;
      const double best = trials.ways[size_t(trials.best)].score();
      if (best == 0 || score < kBetter * best) trials.best = way;
    }
  }
  Order order{trials.best, trials.best, 0};
  // What is tried for the first time, or the second.
  for (size_t tries : {0, 1})
    for (const Way way : kTried) {
      const Samples& samples = trials.ways[size_t(way)];
      if (!allowed(cell, way) || samples.last.size() != tries) continue;
      if (fastest > 0 && estimate(trials, cell, way, bytes) >= kHopeless * fastest) continue;
      order.trial = way;
      ++trials.now;
      return order;
    }
  // Then, again, whichever is due first.
  uint64_t first = trials.now + kAgain;
  for (const Way way : kTried) {
    if (!allowed(cell, way) || way == trials.best) continue;
    if (trials.due[size_t(way)] == 0) {
      const double expected = estimate(trials, cell, way, bytes);
      const double excess = fastest > 0 ? std::max(0.0, expected / fastest - 1) : 0;
      const size_t tried = trials.ways[size_t(way)].last.size();
      const bool soon = tried > 0 && tried < kSamples && excess < kClose;
      trials.due[size_t(way)] =
          trials.now + (soon ? kSoon : kAgain + uint64_t(std::min(kPerExcess * excess, kLongest)));
    }
    if (order.trial == trials.best || trials.due[size_t(way)] < first) {
      first = trials.due[size_t(way)];
      order.trial = way;
    }
  }
  order.after = uint16_t(first - std::min(first, trials.now));
  trials.due[size_t(order.trial)] = 0;
  trials.now += order.after + 1;
  return order;
}

}  // namespace omnihvd
