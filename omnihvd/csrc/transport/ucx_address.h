// The address of a UCX transport: UCX's own, and who is behind it.
#pragma once

#include <cstdint>
#include <string>

#include "transport/process_watch.h"

namespace omnihvd {

struct UcxAddress {
  ProcessId process;
  std::string hostname;
  std::string network;      // namespace, on that host
  uint32_t user;            // effective
  std::string ucx;          // its version, as 1.22
  std::string worker;       // all ways there, shared memory included
  std::string worker_wide;  // without shared memory
};

std::string this_network();

// Whether shared memory will do between two processes. Its wake-ups are sockets of the network
// namespace, and the end of a process shows only within its PID namespace; other users may
// not open it. (UCX itself looks after the namespaces that shared memory belongs to.)
bool share_memory(const UcxAddress& a, const UcxAddress& b);

std::string encode_address(const UcxAddress& address);
// Throws Error when the bytes were not made by encode_address(): UCX would crash on them.
UcxAddress decode_address(const std::string& bytes);

}  // namespace omnihvd
