// Counts the packets of this process's transports that repeat what the network loses: statistics
// call them datagrams. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace omnihvd {

struct PacketCounts {
  std::atomic<uint64_t> sent{0};      // with data, retransmissions included
  std::atomic<uint64_t> again{0};     // retransmissions
  std::atomic<uint64_t> received{0};  // with data
  std::atomic<uint64_t> repeated{0};  // duplicates among them
  std::atomic<uint64_t> refused{0};   // too short, too long, forged, old, or from strangers
};

PacketCounts& packet_counts();

}  // namespace omnihvd
