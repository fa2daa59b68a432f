// Counts the datagrams of all UDP transports of this process. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace omnihvd {

struct DatagramCounts {
  std::atomic<uint64_t> sent{0};      // with data, retransmissions included
  std::atomic<uint64_t> again{0};     // retransmissions
  std::atomic<uint64_t> received{0};  // with data
  std::atomic<uint64_t> repeated{0};  // duplicates among them
  std::atomic<uint64_t> refused{0};   // too short, too long, forged, old, or from strangers
};

DatagramCounts& datagram_counts();

}  // namespace omnihvd
