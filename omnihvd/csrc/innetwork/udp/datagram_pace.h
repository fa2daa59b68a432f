// How fast a DatagramSender may send: as fast as the network has been seen to deliver, a little
// more now and then to find out whether it could take more, and with little queueing. After BBR
// (Cardwell et al., ACM Queue 2016): a model of the path, not a reaction to each loss. Pure: times
// are arguments, in microseconds.
//
//   bandwidth    the highest delivery rate of the last ten round trips
//   round trip   the shortest of the last ten seconds
//   in flight    at most twice the product of these two, plus what late, bunched acknowledgements
//                have been seen to hold back, plus a millisecond at that rate, up to 64 KiB. More
//                beside a flow that keeps the queue full (datagram_rival.h)
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "innetwork/udp/datagram_rival.h"

namespace omnihvd {

class DatagramPace {
 public:
  // packet: bytes of a full datagram, headers included.
  explicit DatagramPace(uint32_t packet);

  // May a datagram go now, with so many bytes in flight?
  bool may_send(uint64_t now, uint64_t under_way) const {
    return now >= next_at_ && under_way < most_under_way();
  }
  uint64_t next_at() const { return next_at_; }
  uint64_t most_under_way() const;
  void on_sent(uint64_t now, uint64_t bytes, uint64_t under_way_before);
  // The sender has nothing to send: measurements now say nothing about what the path can take.
  void on_nothing_to_send(uint64_t under_way);
  // So many bytes have been delivered; the latest of them were sent at sent_at.
  void on_delivered(uint64_t now, uint64_t sent_at, uint64_t bytes, uint64_t under_way);

  void on_lost(uint64_t now);

  double bandwidth() const { return rates_.empty() ? 0 : rates_.front().second; }  // bytes / us

 private:
  enum class Mode { startup, drain, cruise };
  struct Mark {  // the state when something was sent
    uint64_t sent_at, first_sent_at, delivered, delivered_at;
    bool limited;  // the sender had nothing more to send
  };

  void sample(uint64_t now, const Mark& mark);
  void measure_trip(uint64_t now, uint64_t trip);
  void end_round();
  void measure_held_back(uint64_t now, uint64_t bytes);
  void choose_mode(uint64_t now, uint64_t under_way, bool limited);
  double gain() const;
  double path() const { return bandwidth() * double(shortest_); }  // bytes

  const uint32_t packet_;
  Mode mode_ = Mode::startup;
  uint64_t next_at_ = 0;
  double owed_ = 0;  // fraction of a microsecond
  std::deque<Mark> marks_;
  uint64_t delivered_ = 0, delivered_at_ = 0, first_sent_at_ = 0;
  uint64_t limited_until_ = 0;  // in bytes delivered; 0: the sender is not limited
  uint64_t round_ = 0, round_ends_ = 0;
  bool new_round_ = false;
  std::deque<std::pair<uint64_t, double>> rates_;   // (round, rate), descending
  std::deque<std::pair<uint64_t, uint64_t>> held_;  // (round, bytes), descending
  uint64_t shortest_ = 0, shortest_at_ = 0;
  uint64_t round_shortest_ = 0, lost_at_ = 0;
  bool lost_in_round_ = false;
  DatagramRival rival_;
  uint64_t late_since_ = 0, late_bytes_ = 0;
  double full_at_ = 0;  // the bandwidth that later rounds did not raise by a quarter
  uint32_t full_rounds_ = 0;
  uint32_t phase_ = 0;
  uint64_t phase_at_ = 0;
};

}  // namespace omnihvd
