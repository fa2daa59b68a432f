// Datagrams of this process, of all its UDP transports. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace omnihvd {

struct DatagramCounts {
  std::atomic<uint64_t> sent{0};      // with data, those sent again included
  std::atomic<uint64_t> again{0};     // of them
  std::atomic<uint64_t> received{0};  // with data
  std::atomic<uint64_t> repeated{0};  // of them, those that had come before
  std::atomic<uint64_t> refused{0};   // short, long, forged, old, or of strangers
};

DatagramCounts& datagram_counts();

}  // namespace omnihvd
