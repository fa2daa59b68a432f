// A network device of this machine, by name, as XDP programs and AF_XDP need it.
#pragma once

#include <cstdint>
#include <string>

#include "innetwork/xdp/frame.h"

namespace omnihvd {

// The IPv4 address of an interface. Throws Error if there is no such interface, or if it is not up
// or has no address.
std::string interface_address(const std::string& interface);
// How many receive queues it has.
uint32_t receive_queues(const std::string& interface);

// An address and port as frames hold them: of a host, and of a multicast group.
inline_place place_of(const std::string& host, uint16_t port);
inline_place group_place(const std::string& group, uint16_t port);

// Explains a kernel error, and names the privileges needed if that is the cause.
std::string why(int error);

}  // namespace omnihvd
