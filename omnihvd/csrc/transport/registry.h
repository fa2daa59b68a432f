// The transports by name (OMNIHVD_TRANSPORT): each is one row, and nothing else in the core knows
// one. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace omnihvd {

// Throws Error if the transport is not available.
using MakeTransport = std::unique_ptr<Transport> (*)(const TransportOptions& options);

void register_transport(const std::string& name, MakeTransport make);
std::vector<std::string> transport_names();
// Loads the transport's library if need be. Throws Error.
std::unique_ptr<Transport> make_transport(const std::string& name,
                                          const TransportOptions& options = {});

// Counts the packets of this process's transports that repeat what the network loses: statistics
// call them datagrams.
struct PacketCounts {
  std::atomic<uint64_t> sent{0};      // with data, retransmissions included
  std::atomic<uint64_t> again{0};     // retransmissions
  std::atomic<uint64_t> received{0};  // with data
  std::atomic<uint64_t> repeated{0};  // duplicates among them
  std::atomic<uint64_t> refused{0};   // too short, too long, forged, old, or from strangers
};
PacketCounts& packet_counts();

}  // namespace omnihvd
