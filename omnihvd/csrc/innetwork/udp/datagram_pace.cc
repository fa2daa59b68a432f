#include "innetwork/udp/datagram_pace.h"

#include <algorithm>

namespace omnihvd {
namespace {

constexpr uint64_t kFirstPackets = 32;  // in flight, before the first measurement
constexpr uint64_t kLeastPackets = 8;   // in flight at any time
constexpr double kStartupGain = 2.89;   // 2 / ln 2: doubles in each round
constexpr double kUnderWayGain = 2;
constexpr uint64_t kRounds = 10;            // how many rounds a rate is kept
constexpr uint64_t kTripKept = 10'000'000;  // how long a round trip is kept
constexpr uint64_t kTripKeptByRival = 60'000'000;
constexpr uint64_t kLeastTrip = 100;  // clocks and schedulers are no finer
constexpr uint64_t kBurst = 1000;     // of pacing: how much time's worth may go at once
// Extra bytes in flight, beside what the path holds, for what a host sends and acknowledges in one
// go; Linux's BBR allows the same for offload segments. Without it a flow with short round trips
// yields to every flow it queues behind; with more it takes more than its half beside BBR
// (benchmarks/loss.py).
constexpr double kTurns = 1, kMostOfTurn = 65536;  // bytes
constexpr double kMostHeldBack = 50'000;           // microseconds at the bandwidth
// The most microseconds before the next datagram, whatever was measured: if the receiver was
// stopped meanwhile, no rate says what the path can take.
constexpr double kLongestPause = 50'000;
// One round trip each: probe for more, drain the queue that this built, then keep the rate.
constexpr double kPhases[] = {1.25, 0.75, 1, 1, 1, 1, 1, 1};
constexpr uint32_t kPhaseCount = sizeof kPhases / sizeof kPhases[0];

template <typename T>
void keep_greatest(std::deque<std::pair<uint64_t, T>>& kept, uint64_t round, T value) {
  while (!kept.empty() && kept.back().second <= value) kept.pop_back();
  kept.emplace_back(round, value);
  while (kept.front().first + kRounds < round) kept.pop_front();
}

}  // namespace

DatagramPace::DatagramPace(uint32_t packet) : packet_(packet) {}

double DatagramPace::gain() const {
  switch (mode_) {
    case Mode::startup: return kStartupGain;
    case Mode::drain: return 1 / kStartupGain;
    default: return kPhases[phase_];
  }
}

uint64_t DatagramPace::most_under_way() const {
  if (rates_.empty()) return kFirstPackets * packet_;
  const double gain = mode_ == Mode::startup ? kStartupGain : kUnderWayGain;
  const double held = held_.empty() ? 0 : double(held_.front().second);
  const double turns = kTurns * std::min(kMostOfTurn, bandwidth() * kBurst);
  const double most = std::max(gain * path() + held + turns, rival_.under_way());
  return std::max(kLeastPackets * packet_, uint64_t(most));
}

// The sender may make up for time in which it sent nothing, but for no more than a burst.
void DatagramPace::on_sent(uint64_t now, uint64_t bytes, uint64_t under_way_before) {
  if (under_way_before == 0) {
    first_sent_at_ = delivered_at_ = now;
    late_bytes_ = 0;
  }
  if (marks_.empty() || marks_.back().sent_at != now)
    marks_.push_back({now, first_sent_at_, delivered_, delivered_at_, limited_until_ > 0});
  const double rate = std::max(bandwidth(), rival_.rate()) * gain();
  if (rate <= 0) return;
  owed_ += std::min(double(bytes) / rate, kLongestPause);
  const uint64_t from = std::max(next_at_, now > kBurst ? now - kBurst : 0);
  next_at_ = from + uint64_t(owed_);
  owed_ -= double(uint64_t(owed_));
}

void DatagramPace::on_nothing_to_send(uint64_t under_way) {
  limited_until_ = std::max<uint64_t>(1, delivered_ + under_way);
}

void DatagramPace::on_delivered(uint64_t now, uint64_t sent_at, uint64_t bytes,
                                uint64_t under_way) {
  delivered_ += bytes;
  delivered_at_ = now;
  if (limited_until_ > 0 && delivered_ > limited_until_) limited_until_ = 0;
  Mark mark{};
  bool found = false;
  while (!marks_.empty() && marks_.front().sent_at <= sent_at) {
    found = marks_.front().sent_at == sent_at;
    mark = marks_.front();
    marks_.pop_front();
  }
  measure_held_back(now, bytes);
  if (!found) return;
  // Acknowledgements of datagrams sent at the same time may still follow.
  marks_.push_front(mark);
  new_round_ = mark.delivered >= round_ends_;
  if (new_round_) end_round();
  measure_trip(now, now - sent_at);
  sample(now, mark);
  first_sent_at_ = mark.sent_at;
  choose_mode(now, under_way, mark.limited);
}

// Uses the longer of the sending and the delivery time, so that bursts on either side do not feign
// a rate that the path does not have.
void DatagramPace::sample(uint64_t now, const Mark& mark) {
  const uint64_t span = std::max(now - mark.delivered_at, mark.sent_at - mark.first_sent_at);
  if (span < std::max(shortest_, kLeastTrip)) return;
  const double rate = double(delivered_ - mark.delivered) / double(span);
  if (!mark.limited || rate >= bandwidth()) keep_greatest(rates_, round_, rate);
}

void DatagramPace::on_lost(uint64_t now) {
  lost_in_round_ = true;
  lost_at_ = now;
}

void DatagramPace::end_round() {
  if (round_shortest_ > 0) rival_.on_round(round_shortest_, shortest_, bandwidth(), lost_in_round_);
  round_shortest_ = 0;
  lost_in_round_ = false;
  ++round_;
  round_ends_ = delivered_;
}

// Behind a rival's queue no round trip is that of the empty path, unless nothing is ever lost
// there.
void DatagramPace::measure_trip(uint64_t now, uint64_t trip) {
  if (round_shortest_ == 0 || trip < round_shortest_) round_shortest_ = std::max<uint64_t>(1, trip);
  const uint64_t kept = rival_.is_there() ? std::max(shortest_at_, lost_at_) + kTripKeptByRival
                                          : shortest_at_ + kTripKept;
  if (shortest_ != 0 && trip > shortest_ && now < kept) return;
  shortest_ = std::max(kLeastTrip, trip);
  shortest_at_ = now;
}

// Measures acknowledgements that arrive late and together: so much more must be in flight for the
// path not to idle before they come.
void DatagramPace::measure_held_back(uint64_t now, uint64_t bytes) {
  double expected = bandwidth() * double(now - late_since_);
  if (double(late_bytes_) <= expected) {
    late_since_ = now;
    late_bytes_ = 0;
    expected = 0;
  }
  late_bytes_ += bytes;
  const double more = std::min(double(late_bytes_) - expected, bandwidth() * kMostHeldBack);
  keep_greatest(held_, round_, uint64_t(std::max(more, 0.0)));
}

void DatagramPace::choose_mode(uint64_t now, uint64_t under_way, bool limited) {
  if (mode_ == Mode::startup && new_round_ && !limited) {
    if (bandwidth() >= 1.25 * full_at_) {
      full_at_ = bandwidth();
      full_rounds_ = 0;
    } else if (++full_rounds_ >= 3) {
      mode_ = Mode::drain;
    }
  }
  if (mode_ == Mode::drain &&
      double(under_way) <= std::max(path(), double(kLeastPackets * packet_))) {
    mode_ = Mode::cruise;
    phase_ = 2;
    phase_at_ = now;
  }
  if (mode_ != Mode::cruise || now < phase_at_ + shortest_) return;
  // Probing for more lasts until that much is in flight; for less, until the queue is gone.
  if (phase_ == 0 && double(under_way) < 1.25 * path() && now < phase_at_ + 4 * shortest_) return;
  phase_ = (phase_ + 1) % kPhaseCount;
  phase_at_ = now;
}

}  // namespace omnihvd
