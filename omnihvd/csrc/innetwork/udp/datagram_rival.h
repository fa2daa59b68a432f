// A rival is another flow that keeps the queue before the link full until something is lost, as TCP
// Reno and CUBIC do. Datagrams wait behind that queue, so beside a rival a flow delivers less the
// less it has in flight. A rival's queue never empties, whereas this flow's own does (DatagramPace
// keeps about a millisecond of it), so a rival can be detected. This flow then claims half of the
// rate it had: by Little's law it puts so much in flight that it gets this rate whatever the queue,
// and the rival's window is then as large. After the competitive mode of Copa (Arun and
// Balakrishnan, NSDI 2018). Pure: times are arguments, in microseconds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace omnihvd {

class DatagramRival {
 public:
  // A round trip has ended. trip: the shortest time in it; shortest: that of the empty path;
  // bandwidth: the highest recent rate, in bytes per microsecond; lost: whether anything was lost.
  void on_round(uint64_t trip, uint64_t shortest, double bandwidth, bool lost) {
    trip_ = trip;
    const bool queued = trip > kOwnQueue + 2 * shortest;
    seen_ = queued ? std::min(seen_ + 1, kMostSeen) : std::max(seen_ - 1, 0);
    if (seen_ == 0) {
      is_there_ = false;
      had_ = claimed_ = bandwidth / 2;
    }
    if (seen_ >= kSure) is_there_ = true;
    // If the link itself has become slower, this flow fills the queue and loses in each round.
    if (is_there_) claimed_ = lost ? kOnLoss * claimed_ : std::min(had_, kBack * claimed_);
  }

  bool is_there() const { return is_there_; }
  // The bytes to keep in flight, and their rate in bytes per microsecond; 0: no rival, no change.
  double under_way() const { return is_there_ ? std::min(claimed_ * double(trip_), kMost) : 0; }
  double rate() const { return is_there_ ? claimed_ : 0; }

 private:
  static constexpr uint64_t kOwnQueue = 3000;           // microseconds
  static constexpr int kSure = 4, kMostSeen = 8;        // rounds
  static constexpr double kOnLoss = 0.9, kBack = 1.01;  // of the claim, in a round
  static constexpr double kMost = 4 << 20;              // bytes

  uint64_t trip_ = 0;
  int seen_ = 0;  // rounds with such a queue minus rounds without
  bool is_there_ = false;
  double had_ = 0, claimed_ = 0;
};

}  // namespace omnihvd
