// The address of a UCX transport: UCX's own, and its owner's identity.
#pragma once

#include <cstdint>
#include <string>

#include "transport/address.h"

namespace omnihvd {

struct UcxAddress : AddressOwner {
  uint32_t user;            // effective
  std::string ucx;          // its version, as 1.22
  std::string worker;       // all paths, shared memory included
  std::string worker_wide;  // without shared memory
};

// Whether two processes can use shared memory. Its wake-ups are sockets of the network namespace,
// and the end of a process is visible only within its PID namespace; other users may not open it.
// (UCX itself checks the namespaces that shared memory belongs to.)
bool share_memory(const UcxAddress& a, const UcxAddress& b);

std::string encode_address(const UcxAddress& address);
// Throws Error unless encode_address() made the bytes: UCX would crash on others.
UcxAddress decode_address(const std::string& bytes);

}  // namespace omnihvd
