// What travels between a DatagramSender and a DatagramReceiver: one direction of a pair of peers.
//
// A message is cut into datagrams of `payload` bytes, the last of which may be shorter; an empty
// one is one datagram. Datagrams are numbered through all messages; lost ones are sent again under
// their number. Numbers and times travel as their lower 32 bits: what is delayed by 2^31 datagrams,
// or microseconds, is mistaken for another.
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

// All below `floor` has come, and of what follows, bit i (the lowest of a byte first) floor + i.
struct Acknowledgement {
  uint32_t floor = 0;
  uint32_t stamp = 0;  // the latest of those that have come since the last acknowledgement
  std::vector<uint8_t> bits;

  bool has(uint64_t i) const { return bits[i / 8] >> i % 8 & 1; }
};

// The number with these lower bits that is next to `near`.
inline uint64_t unwrapped(uint32_t low, uint64_t near) {
  return near + uint64_t(int64_t(int32_t(low - uint32_t(near))));
}

// Numbers begin here, so that there are some before the first.
inline uint64_t first_sequence(uint32_t low) { return (uint64_t(1) << 32) + low; }

inline uint32_t datagrams_of(uint32_t size, uint32_t payload) {
  return size == 0 ? 1 : uint32_t((uint64_t(size) + payload - 1) / payload);
}

}  // namespace omnihvd
