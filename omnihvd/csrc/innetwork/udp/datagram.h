// The datagrams between a DatagramSender and a DatagramReceiver: one direction of a pair of peers.
//
// The sender cuts a message into datagrams of `payload` bytes; the last may be shorter, and an
// empty message is one datagram. Datagrams are numbered across all messages, and lost ones are sent
// again under their number. Numbers and times travel as their lower 32 bits: anything delayed by
// 2^31 datagrams or microseconds is mistaken for another.
#pragma once

#include <cstdint>
#include <vector>

namespace omnihvd {

struct Datagram {
  uint32_t sequence = 0;
  uint32_t stamp = 0;   // when it was sent, microseconds of the sender's clock
  uint32_t size = 0;    // of the whole message, bytes
  uint32_t offset = 0;  // in the message, bytes: a multiple of the payload
};

// All datagrams below `floor` have arrived. Bit i (lowest of a byte first): so has floor + i.
struct Acknowledgement {
  uint32_t floor = 0;
  uint32_t stamp = 0;  // the latest stamp that arrived since the last acknowledgement
  std::vector<uint8_t> bits;

  bool has(uint64_t i) const { return bits[i / 8] >> i % 8 & 1; }
};

// The number with these lower bits that is nearest to `near`.
inline uint64_t unwrapped(uint32_t low, uint64_t near) {
  return near + uint64_t(int64_t(int32_t(low - uint32_t(near))));
}

// Numbers begin here, so that there are some before the first.
inline uint64_t first_sequence(uint32_t low) { return (uint64_t(1) << 32) + low; }

inline uint32_t datagrams_of(uint32_t size, uint32_t payload) {
  return size == 0 ? 1 : uint32_t((uint64_t(size) + payload - 1) / payload);
}

}  // namespace omnihvd
