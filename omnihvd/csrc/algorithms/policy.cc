#include "algorithms/policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace omnihvd {
namespace {

constexpr size_t kSamples = 5;
constexpr double kBetter = 0.93;    // an algorithm replaces the best below this share of its time
constexpr double kFavour = 0.7;     // factor for times that are only bounded: it may be that fast
constexpr double kMessage = 16384;  // bytes: a message takes less time than any sum
constexpr double kPatience = 2;     // times the time to connect
constexpr double kStreamRate = 4;   // a library is at most so many times as fast as streaming
constexpr double kMeasured = 10;    // times the time to connect: a first sum so long is measured
constexpr uint32_t kAgain = 64;     // sums until an algorithm as good as the best is tried again
constexpr double kPerExcess = 100;  // and so many more per unit of excess
constexpr uint32_t kSoon = 8;       // the same if it was tried only a few times and was close
constexpr double kClose = 0.3;      // "close": excess over the best's time; first sums vary as much
constexpr double kFirstPerExcess = 12;  // sums per unit of excess until the first and second trials
constexpr double kLongest = 60'000;
constexpr uint64_t kDecidesFrom = 4'000'000;  // bytes: after each first sum, which takes longer
constexpr double kCoded = 0.87;               // of streaming's time, if the link is the bottleneck:
constexpr double kLinkBound = 6e-9;  // then a byte of the union takes so many seconds or more,
constexpr double kStart = 5e5;       // plus as many bytes as pass in the time of an empty sum
constexpr int kCodedFrom = 2;        // a density class; below, other costs of a sum dominate

// The algorithms to choose from, in order of trial. A new algorithm needs an entry here, its
// bounds, and its case in Ways::make().
constexpr Way kTried[] = {Way::unite, Way::stream, Way::original, Way::coded};

// Used until the share is known.
double share_of(int density) {
  constexpr double shares[kDensities] = {0.003, 0.02, 0.08, 0.25, 0.5, 1, 1};
  return shares[density];
}

}  // namespace

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

void Policy::measured(Bin bin, Way way, uint64_t bytes, std::optional<uint64_t> united,
                      double seconds) {
  Trials& trials = bins_[bin];
  trials.bytes = double(bytes);
  if (united) trials.united = double(*united);
  trials.ways[size_t(way)].add(seconds / double(bytes));
}

bool Policy::connects(Way way, double seconds) {
  spent_s_ += seconds;
  // A library has connected some ranks before.
  const double measured_from = connect_s_ * (way == Way::original ? 1 : kMeasured);
  return !std::exchange(used_[size_t(way)], true) && seconds < measured_from;
}

double Policy::patience() const {
  if (used_[size_t(Way::stream)] || at_once_) return 0;
  return std::max(0.0, kPatience * connect_s_ - spent_s_);
}

void Policy::library_took(uint64_t bytes, double seconds) {
  if (bytes > 0 && (used_[size_t(Way::original)] || used_[size_t(Way::unite)]))
    library_[size_class(bytes)].add(seconds / double(bytes));
}

// Adds a bound: a sum took so long, and the sum in question has so many times its bytes and its
// union's bytes.
void Policy::Bounds::add(double took, double bytes, double united) {
  const double at_most = took * std::max({1.0, bytes, united});
  least = std::max(least, took * std::min({1.0, bytes, united}));
  most = most > 0 ? std::min(most, at_most) : at_most;
}

double Policy::Bounds::likely() const { return std::sqrt(least * most); }

Policy::Bounds Policy::bounds(const Trials& trials, Way way) const {
  const auto times = [](double bytes, double theirs) {
    return (bytes + kMessage) / (theirs + kMessage);
  };
  Bounds found;
  if (way != Way::original)
    for (const auto& [bin, theirs] : bins_)
      if (const double score = theirs.ways[size_t(way)].score(); score && bin.density != kUnknown)
        found.add(score * theirs.bytes, times(trials.bytes, theirs.bytes),
                  times(trials.united, theirs.united));
  if (way == Way::stream || way == Way::coded) return found;
  Bounds library;
  for (const auto& [size, samples] : library_) {
    const double bytes = std::exp2(size / 2.0);
    const double more = times(way == Way::unite ? trials.united : trials.bytes, bytes);
    library.add(samples.score() * bytes, more, more);
  }
  if (way == Way::original) return library;
  found.least = std::max(found.least, library.least);
  if (found.most == 0) found.most = 2 * library.most;  // inspection, an exchange, copies
  return found;
}

double Policy::streamed(const Trials& trials) {
  return trials.ways[size_t(Way::stream)].score() * trials.bytes;
}
bool Policy::link_bound(const Trials& trials) {
  return streamed(trials) > kLinkBound * (trials.united + kStart);
}

bool Policy::allowed(Bin bin, const Trials& trials, Way way) const {
  if (way == Way::unite) return unites_ && bin.density < kDense;
  return way != Way::coded ||
         (bin.density >= kCodedFrom && bin.density != kUnknown && link_bound(trials));
}

double Policy::expected(const Trials& trials, Way way) const {
  if (const double score = trials.ways[size_t(way)].score()) return score * trials.bytes;
  if (way == Way::coded) return kCoded * streamed(trials);  // allowed only where that is known
  const Bounds known = bounds(trials, way);
  if (known.most > 0) return known.likely();
  if (way == Way::stream) return 0;
  const double summed = way == Way::unite ? trials.united : trials.bytes;
  const double gain = link_bound(trials) ? 1 : kStreamRate;
  return streamed(trials) * summed / std::max(trials.united, 1e-3 * trials.bytes) / gain;
}

Way Policy::first(Bin bin, const Trials& trials) const {
  const bool may_connect = trials.bytes >= kConnectsAtOnce || patience() == 0;
  if (may_connect && bounds(trials, Way::stream).most == 0) return Way::stream;
  Way fastest = Way::original;
  double least = 0;
  for (const Way way : kTried) {
    const double likely = bounds(trials, way).likely();
    if (!allowed(bin, trials, way) || likely == 0 || (least > 0 && likely >= least)) continue;
    least = likely;
    fastest = way;
  }
  return fastest;
}

// The number of sums until an algorithm is tried.
uint64_t Policy::interval(const Trials& trials, Way way) const {
  const size_t tried = trials.ways[size_t(way)].last.size();
  const double best = trials.ways[size_t(trials.best)].score() * trials.bytes;
  if (way == Way::stream && !used_[size_t(way)])
    return uint64_t(std::min(std::ceil(patience() / best), double(kAgain)));
  const double excess = std::max(0.0, expected(trials, way) / best - 1);
  const bool in_vain = tried == 0 && (kFavour * bounds(trials, way).least > best ||
                                      (link_bound(trials) && way != Way::coded));
  if (tried < 2 && !in_vain) return uint64_t(std::min(kFirstPerExcess * excess, kLongest));
  if (tried > 0 && tried < kSamples && excess < kClose) return kSoon;
  return kAgain + uint64_t(std::min(kPerExcess * excess, kLongest));
}

Order Policy::order(Bin bin, uint64_t bytes) {
  Trials& trials = bins_[bin];
  trials.bytes = double(bytes);
  if (trials.united == 0) trials.united = share_of(bin.density) * trials.bytes;
  for (const Way way : kTried) {
    const double score = trials.ways[size_t(way)].score();
    const double best = trials.ways[size_t(trials.best)].score();
    if (allowed(bin, trials, way) && score > 0 && (best == 0 || score < kBetter * best))
      trials.best = way;
  }
  Order order{trials.best, trials.best, 0};
  if (trials.best == Way::automatic) {
    order.now = order.trial = first(bin, trials);
    order.after = order.now == Way::original && bytes < kDecidesFrom ? 3 : 0;
    trials.now += order.after + 1;
    return order;
  }
  uint64_t first = 0;
  for (const Way way : kTried) {
    if (!allowed(bin, trials, way) || way == trials.best) continue;
    uint64_t& due = trials.due[size_t(way)];
    if (due == 0) due = trials.now + interval(trials, way);
    if (order.trial != trials.best && due >= first) continue;
    first = due;
    order.trial = way;
  }
  order.after = uint16_t(first - std::min(first, trials.now));
  trials.due[size_t(order.trial)] = 0;
  if (order.trial == Way::stream && patience() > 0) order.trial = trials.best;  // look again then
  trials.now += order.after + 1;
  return order;
}

}  // namespace omnihvd
