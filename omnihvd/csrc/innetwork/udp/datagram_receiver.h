// Reassembles messages from datagrams that arrive in any order, several times, or never. Pure.
// Trusts only that whoever wrote a datagram meant to: authentication comes before.
//
// Memory: one bit for each datagram of the window; and for partial messages, which do not overlap,
// at most window * payload + 2 * largest bytes, whatever a peer claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "innetwork/udp/datagram.h"

namespace omnihvd {

class DatagramReceiver {
 public:
  enum class Taken { fresh, duplicate, refused };

  // payload, window: as the sender's. largest: bytes of a message. ordered: gives messages in the
  // order in which they were sent; otherwise as soon as each is complete, so that a message that
  // waits for a lost datagram holds up no other.
  DatagramReceiver(uint32_t first, uint32_t payload, uint32_t window, uint32_t largest,
                   bool ordered);

  // Refuses a datagram, without effect, that the sender cannot have made from its messages.
  Taken on_datagram(const Datagram& header, const uint8_t* data, size_t bytes);
  // Gives each message once; false: none is complete.
  bool next_message(std::vector<uint8_t>* message);

  // True if a datagram has arrived since the last acknowledgement, including a duplicate: its
  // sender does not know that the first copy arrived.
  bool owes() const { return stamp_.has_value(); }
  Acknowledgement acknowledgement();

  size_t held_bytes() const { return held_; }  // in messages not yet given

 private:
  struct Partial {
    std::vector<uint8_t> bytes;
    uint32_t datagrams;
    uint32_t missing;
  };
  Partial* message_of(uint64_t first, const Datagram& header);
  void give_complete(std::map<uint64_t, Partial>::iterator at);

  const uint32_t payload_, window_, largest_;
  const bool ordered_;
  const uint64_t begin_;
  uint64_t floor_;           // all below have arrived
  std::deque<bool> beyond_;  // [sequence - floor_]
  uint64_t next_;            // if ordered: the first datagram of the message to give next
  std::map<uint64_t, Partial> partial_;  // by the first datagram
  std::deque<std::vector<uint8_t>> ready_;
  std::optional<uint32_t> stamp_;
  size_t held_ = 0;
};

}  // namespace omnihvd
