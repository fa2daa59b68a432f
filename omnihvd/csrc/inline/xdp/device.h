// A network device of this machine, by its name, as XDP programs and AF_XDP need it.
#pragma once

#include <cstdint>
#include <string>

#include "inline/xdp/frame.h"

namespace omnihvd {

// The IPv4 address of an interface. Throws Error: there is no such interface, it is not up, or it
// has none.
std::string interface_address(const std::string& interface);
// How many receive queues it has.
uint32_t receive_queues(const std::string& interface);

// As in frames: the place of a host's port, and that of a multicast group.
inline_place place_of(const std::string& host, uint16_t port);
inline_place group_place(const std::string& group, uint16_t port);

// What an error of the kernel means, and which rights it takes where it is a matter of those.
std::string why(int error);

}  // namespace omnihvd
