// Messages as datagrams, retransmitted when the network loses them (docs/in-network.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/transport.h"

namespace omnihvd {

struct UdpOptions : TransportOptions {
  UdpOptions(const TransportOptions& options = {}) : TransportOptions(options) {}
  // For tests.
  std::function<uint64_t()> clock = nullptr;  // microseconds; none: the steady clock
  bool watches = true;  // false: processes of this host are as those of other hosts
};

std::unique_ptr<Transport> make_udp_transport(const UdpOptions& options);

}  // namespace omnihvd
