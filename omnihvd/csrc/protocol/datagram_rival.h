// Another flow that keeps the queue before the link full until something is lost, as TCP's Reno
// and CUBIC do: beside it a flow whose datagrams wait behind that queue delivers less the less it
// has under way. Such a queue never empties, and this flow's own does (DatagramPace keeps about a
// millisecond of it), so that it can be told. Then half of the rate that this flow had is claimed,
// and by Little's law so much is put under way that it comes about whatever the queue: the rival's
// window is then as large. After the competitive mode of Copa (Arun and Balakrishnan, NSDI 2018).
// Pure: times are arguments, microseconds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace omnihvd {

class DatagramRival {
 public:
  // A round trip has ended, of which the shortest time, and that of the empty path; the greatest
  // rate of late, bytes a microsecond; and whether something was lost.
  void on_round(uint64_t trip, uint64_t shortest, double bandwidth, bool lost) {
    trip_ = trip;
    const bool queued = trip > kOwnQueue + 2 * shortest;
    seen_ = queued ? std::min(seen_ + 1, kMostSeen) : std::max(seen_ - 1, 0);
    if (seen_ == 0) {
      is_there_ = false;
      had_ = claimed_ = bandwidth / 2;
    }
    if (seen_ >= kSure) is_there_ = true;
    // Where the link itself has become slower this flow fills the queue, and loses in each round.
    if (is_there_) claimed_ = lost ? kOnLoss * claimed_ : std::min(had_, kBack * claimed_);
  }

  bool is_there() const { return is_there_; }
  // What is to be under way, bytes, and its rate, bytes a microsecond; 0: as much as without it.
  double under_way() const { return is_there_ ? std::min(claimed_ * double(trip_), kMost) : 0; }
  double rate() const { return is_there_ ? claimed_ : 0; }

 private:
  static constexpr uint64_t kOwnQueue = 3000;           // microseconds
  static constexpr int kSure = 4, kMostSeen = 8;        // rounds
  static constexpr double kOnLoss = 0.9, kBack = 1.01;  // of what is claimed, in a round
  static constexpr double kMost = 4 << 20;              // bytes

  uint64_t trip_ = 0;
  int seen_ = 0;  // rounds with such a queue, less those without
  bool is_there_ = false;
  double had_ = 0, claimed_ = 0;
};

}  // namespace omnihvd
