// Puts messages together again from datagrams that come in any order, several times, or never.
// Pure. Trusts nothing but that whoever wrote a datagram meant to: authentication comes before.
//
// Memory: a bit for each datagram of the window; and of messages that have begun to come, which do
// not overlap, at most window * payload + 2 * largest bytes, whatever a peer says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "protocol/datagram.h"

namespace omnihvd {

class DatagramReceiver {
 public:
  enum class Taken { fresh, duplicate, refused };

  // payload, window: as the sender's. largest: bytes of a message. ordered: messages are given in
  // the order in which they were sent; else as soon as each is complete, so that one that waits
  // for a lost datagram holds up no other.
  DatagramReceiver(uint32_t first, uint32_t payload, uint32_t window, uint32_t largest,
                   bool ordered);

  // Refused, and without effect: it is none that the sender can have made of its messages.
  Taken on_datagram(const Datagram& header, const uint8_t* data, size_t bytes);
  // Each message once; false: none is complete.
  bool next_message(std::vector<uint8_t>* message);

  // Something has come since the last acknowledgement: also what had come before, whose sender
  // does not know it.
  bool owes() const { return stamp_.has_value(); }
  Acknowledgement acknowledgement();

  size_t held_bytes() const { return held_; }  // of messages not yet given

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
  uint64_t floor_;           // all below have come
  std::deque<bool> beyond_;  // [sequence - floor_]
  uint64_t next_;            // if ordered: the first datagram of the message to give next
  std::map<uint64_t, Partial> partial_;  // by the first datagram
  std::deque<std::vector<uint8_t>> ready_;
  std::optional<uint32_t> stamp_;
  size_t held_ = 0;
};

}  // namespace omnihvd
