// Sends messages as datagrams over a network that loses, repeats and reorders them: selective
// repeat. Pure: times are arguments, in microseconds of a monotonic clock. The bytes stay with the
// caller, which learns from next() what to send.
//
// A datagram counts as lost if one sent after it has arrived and it has not within a quarter of a
// round trip more (RACK, RFC 8985). If nothing arrives at all, the sender repeats the oldest after
// a time-out derived from the measured round trips (RFC 6298), which doubles each time; its
// acknowledgement tells what became of the others. Duplicates and late arrivals are harmless: a
// datagram that has arrived stays arrived.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "innetwork/round_trip.h"
#include "innetwork/udp/datagram.h"
#include "innetwork/udp/datagram_pace.h"

namespace omnihvd {

class DatagramSender {
 public:
  struct Piece {
    Datagram header;
    uint64_t message;  // as passed to send()
    uint32_t bytes;    // of the message, from header.offset
  };

  // payload, window: as the receiver's. Keeps at most `window` datagrams in mind, besides the
  // messages themselves. Throws Error unless both are above 0, and the window below 2^16.
  DatagramSender(uint32_t first, uint32_t payload, uint32_t window);

  void send(uint64_t message, uint32_t size) { messages_.push_back({message, size, 0, 0}); }
  // At most so many in flight: what the network is thought to take. At least 1.
  void set_limit(uint32_t datagrams) { limit_ = datagrams > 0 ? datagrams : 1; }
  // From now on sends as fast as the network delivers (datagram_pace.h). overhead: bytes
  // of a datagram's headers.
  void pace(uint32_t overhead);
  // The next datagram to send now; false: none.
  bool next(uint64_t now, Piece* piece);
  // When next() will have something to send even if nothing arrives; none: not until then, or at
  // once.
  std::optional<uint64_t> wake_at() const;
  // Appends to `done` the messages that have now fully arrived. False, and without effect, if the
  // acknowledgement names datagrams that were never sent.
  bool on_acknowledgement(uint64_t now, const Acknowledgement& acknowledgement,
                          std::vector<uint64_t>* done);

  const DatagramPace* pace() const { return pace_ ? &*pace_ : nullptr; }
  bool idle() const { return messages_.empty(); }
  uint32_t under_way() const { return under_way_; }
  uint64_t sent() const { return sent_; }                    // datagrams, retransmissions included
  uint64_t again() const { return again_; }                  // retransmissions
  uint32_t time_outs() const { return time_outs_; }          // in a row
  uint64_t round_trip() const { return trips_.smoothed(); }  // 0: unknown
  size_t kept() const { return entries_.size() + order_.size() + lost_.size(); }

 private:
  enum class State : uint8_t { under_way, lost, arrived };
  struct Message {
    uint64_t name;
    uint32_t size;
    uint32_t cut;      // datagrams cut from it so far
    uint32_t arrived;  // of them
  };
  struct Entry {
    uint64_t message;  // its place in messages_, counted from the first ever
    uint64_t sent_at;
    uint64_t place;  // the place of its last transmission among all
    uint32_t offset;
    State state;
  };
  struct Transmission {
    uint64_t sequence, sent_at, place;
  };

  Entry& entry(uint64_t sequence) { return entries_[sequence - floor_]; }
  bool is_current(const Transmission& transmission) const;
  std::optional<uint64_t> next_lost();
  std::optional<uint64_t> next_new();
  void arrive(uint64_t sequence, std::vector<uint64_t>* done);
  void lose_oldest(uint64_t now);
  void find_lost(uint64_t now);
  void measure(uint64_t now, uint64_t sent_at);
  void forget_done();
  uint64_t time_out() const;
  bool may_send(uint64_t now) const;
  bool has_more() const;
  uint32_t bytes_of(const Entry& entry) const;
  uint64_t patience() const;

  const uint32_t payload_, window_;
  const uint64_t begin_;
  uint32_t limit_;
  std::deque<Message> messages_;
  uint64_t first_message_ = 0;      // the place of messages_.front()
  uint64_t cutting_ = 0;            // the place of the message that is being cut
  uint64_t floor_;                  // all below have arrived
  std::deque<Entry> entries_;       // from floor_
  std::deque<Transmission> order_;  // in order of time; some are outdated
  std::deque<uint64_t> lost_;       // some have arrived meanwhile
  uint32_t under_way_ = 0;
  uint64_t under_way_bytes_ = 0, arrived_bytes_ = 0;  // headers included, if paced
  std::optional<DatagramPace> pace_;
  uint32_t overhead_ = 0;
  // When the latest datagram that is known to have arrived was sent.
  std::optional<uint64_t> latest_;
  uint64_t latest_place_ = 0;  // and how many transmissions there were up to then
  uint64_t touched_ = 0;       // when anything was last sent or acknowledged
  uint32_t time_outs_ = 0;     // in a row
  RoundTrip trips_;
  uint64_t last_trip_ = 0;
  uint64_t sent_ = 0, again_ = 0;
};

}  // namespace omnihvd
