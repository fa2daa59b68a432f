#include "innetwork/udp/datagram_sender.h"

#include <algorithm>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr uint64_t kFirstTimeOut = 100'000;  // before the first measured round trip
// The maximum also applies to a round trip in which a clock jumps forward, or the receiver is
// stopped: it seems that long.
constexpr uint64_t kLeastTimeOut = 1'000, kMostTimeOut = 1'000'000;

}  // namespace

DatagramSender::DatagramSender(uint32_t first, uint32_t payload, uint32_t window)
    : payload_(payload),
      window_(window),
      begin_(first_sequence(first)),
      limit_(window),
      floor_(begin_) {
  if (payload == 0 || window == 0 || window >= 1u << 16)
    throw Error("a window of datagrams has 1 to 65535, of at least a byte");
}

bool DatagramSender::is_current(const Transmission& transmission) const {
  if (transmission.sequence < floor_) return false;
  const Entry& entry = entries_[transmission.sequence - floor_];
  return entry.state == State::under_way && entry.place == transmission.place;
}

void DatagramSender::pace(uint32_t overhead) {
  overhead_ = overhead;
  pace_.emplace(payload_ + overhead);
}

uint32_t DatagramSender::bytes_of(const Entry& entry) const {
  const Message& message = messages_[entry.message - first_message_];
  return std::min(payload_, message.size - entry.offset) + overhead_;
}

bool DatagramSender::may_send(uint64_t now) const {
  return under_way_ < limit_ && (!pace_ || pace_->may_send(now, under_way_bytes_));
}

bool DatagramSender::has_more() const {
  return !lost_.empty() ||
         (entries_.size() < window_ && cutting_ - first_message_ < messages_.size());
}

bool DatagramSender::next(uint64_t now, Piece* piece) {
  find_lost(now);
  const bool timed_out = under_way_ > 0 && now >= touched_ + time_out();
  if (timed_out) {
    lose_oldest(now);
    ++time_outs_;
    touched_ = now;
  }
  if (timed_out ? under_way_ >= limit_ : !may_send(now)) return false;
  std::optional<uint64_t> sequence = next_lost();
  if (sequence)
    ++again_;
  else
    sequence = next_new();
  if (!sequence) {
    if (pace_) pace_->on_nothing_to_send(under_way_bytes_);
    return false;
  }
  Entry& chosen = entry(*sequence);
  chosen.state = State::under_way;
  chosen.sent_at = touched_ = now;
  chosen.place = ++sent_;
  order_.push_back({*sequence, now, sent_});
  if (pace_) pace_->on_sent(now, bytes_of(chosen), under_way_bytes_);
  under_way_bytes_ += bytes_of(chosen);
  ++under_way_;
  const Message& message = messages_[chosen.message - first_message_];
  piece->header = {uint32_t(*sequence), uint32_t(now), message.size, chosen.offset};
  piece->message = message.name;
  piece->bytes = std::min(payload_, message.size - chosen.offset);
  return true;
}

std::optional<uint64_t> DatagramSender::next_lost() {
  while (!lost_.empty()) {
    const uint64_t sequence = lost_.front();
    lost_.pop_front();
    if (sequence >= floor_ && entry(sequence).state == State::lost) return sequence;
  }
  return std::nullopt;
}

std::optional<uint64_t> DatagramSender::next_new() {
  if (entries_.size() >= window_ || cutting_ - first_message_ >= messages_.size())
    return std::nullopt;
  Message& message = messages_[cutting_ - first_message_];
  entries_.push_back({cutting_, 0, 0, message.cut * payload_, State::lost});
  if (++message.cut == datagrams_of(message.size, payload_)) ++cutting_;
  return floor_ + entries_.size() - 1;
}

std::optional<uint64_t> DatagramSender::wake_at() const {
  const bool held =
      pace_ && under_way_ < limit_ && has_more() && under_way_bytes_ < pace_->most_under_way();
  if (under_way_ == 0) return held ? std::optional(pace_->next_at()) : std::nullopt;
  uint64_t at = touched_ + time_out();
  if (held) at = std::min(at, pace_->next_at());
  for (const Transmission& oldest : order_) {
    if (!is_current(oldest)) continue;
    if (oldest.place < latest_place_) at = std::min(at, oldest.sent_at + patience());
    break;
  }
  return at;
}

uint64_t DatagramSender::time_out() const {
  return trips_.time_out(time_outs_, trips_.smoothed(), kFirstTimeOut, kLeastTimeOut, kMostTimeOut);
}

uint64_t DatagramSender::patience() const {
  return std::min(last_trip_ + trips_.smoothed() / 4 + 1, kMostTimeOut);
}

bool DatagramSender::on_acknowledgement(uint64_t now, const Acknowledgement& acknowledgement,
                                        std::vector<uint64_t>* done) {
  const uint64_t floor = unwrapped(acknowledgement.floor, floor_);
  const uint64_t end = floor_ + entries_.size();
  const uint64_t bits = acknowledgement.bits.size() * 8;
  const uint64_t sent_at = unwrapped(acknowledgement.stamp, now);
  if (floor < begin_ || floor > end || sent_at > now) return false;
  for (uint64_t i = end - floor; i < bits; ++i)
    if (acknowledgement.has(i)) return false;
  const uint64_t before = floor_;
  arrived_bytes_ = 0;
  bool any = false;
  const auto take = [&](uint64_t sequence) {
    const Entry& one = entry(sequence);
    if (one.state == State::arrived) return;
    // Otherwise an earlier transmission of it arrived.
    if (one.sent_at <= sent_at) latest_place_ = std::max(latest_place_, one.place);
    arrive(sequence, done);
    any = true;
  };
  for (uint64_t sequence = before; sequence < floor; ++sequence) take(sequence);
  for (uint64_t i = before > floor ? before - floor : 0; i < bits; ++i)
    if (acknowledgement.has(i)) take(floor + i);
  // A repeated or overtaken acknowledgement measures nothing.
  if (any && (!latest_ || sent_at > *latest_)) measure(now, sent_at);
  if (any) {
    if (pace_) pace_->on_delivered(now, sent_at, arrived_bytes_, under_way_bytes_);
    touched_ = now;
    time_outs_ = 0;
  }
  forget_done();
  return true;
}

void DatagramSender::arrive(uint64_t sequence, std::vector<uint64_t>* done) {
  Entry& arrived = entry(sequence);
  if (arrived.state == State::under_way) {
    --under_way_;
    under_way_bytes_ -= bytes_of(arrived);
  }
  arrived_bytes_ += bytes_of(arrived);
  arrived.state = State::arrived;
  Message& message = messages_[arrived.message - first_message_];
  if (++message.arrived == datagrams_of(message.size, payload_)) done->push_back(message.name);
}

void DatagramSender::measure(uint64_t now, uint64_t sent_at) {
  latest_ = sent_at;
  last_trip_ = std::max<uint64_t>(1, now - sent_at);
  trips_.measure(last_trip_);
}

void DatagramSender::forget_done() {
  while (!entries_.empty() && entries_.front().state == State::arrived) {
    entries_.pop_front();
    ++floor_;
  }
  while (!messages_.empty() && first_message_ < cutting_ &&
         messages_.front().arrived == datagrams_of(messages_.front().size, payload_)) {
    messages_.pop_front();
    ++first_message_;
  }
  while (!order_.empty() && !is_current(order_.front())) order_.pop_front();
  while (!lost_.empty() && (lost_.front() < floor_ || entry(lost_.front()).state != State::lost))
    lost_.pop_front();
}

void DatagramSender::find_lost(uint64_t now) {
  while (!order_.empty()) {
    const Transmission& oldest = order_.front();
    if (is_current(oldest)) {
      if (oldest.place > latest_place_ || now < oldest.sent_at + patience()) return;
      lose_oldest(now);
    } else {
      order_.pop_front();
    }
  }
}

void DatagramSender::lose_oldest(uint64_t now) {
  while (!is_current(order_.front())) order_.pop_front();
  const uint64_t sequence = order_.front().sequence;
  order_.pop_front();
  entry(sequence).state = State::lost;
  --under_way_;
  under_way_bytes_ -= bytes_of(entry(sequence));
  lost_.push_back(sequence);
  if (pace_) pace_->on_lost(now);
}

}  // namespace omnihvd
