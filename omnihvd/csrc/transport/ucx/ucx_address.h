// The address of a UCX transport: UCX's own, and its owner's identity.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "transport/address.h"

namespace omnihvd {

inline constexpr char kUcxAddress[] = "omnihvd ucx 4";

struct UcxAddress : AddressOwner {
  uint32_t user;            // effective
  std::string ucx;          // its version, as 1.22
  std::string worker;       // all paths, shared memory included
  std::string worker_wide;  // without shared memory
};

// Whether two processes can use shared memory. Its wake-ups are sockets of the network namespace,
// and the end of a process is visible only within its PID namespace; other users may not open it.
// (UCX itself checks the namespaces that shared memory belongs to.)
inline bool share_memory(const UcxAddress& a, const UcxAddress& b) {
  const bool has_any = a.worker != a.worker_wide && b.worker != b.worker_wide;
  return has_any && share_network(a, b) && a.user == b.user;
}

inline std::string encode_address(const UcxAddress& address) {
  BytesWriter body;
  write_owner(body, address);
  body.u64(address.user);
  body.text(address.ucx);
  body.text(address.worker);
  body.text(address.worker_wide);
  return wrap_address(kUcxAddress, body.bytes());
}

// Throws Error unless encode_address() made the bytes: UCX would crash on others.
inline UcxAddress decode_address(const std::string& bytes) {
  const std::string body = unwrap_address(kUcxAddress, bytes);
  BytesReader in(body);
  return {read_owner(in), in.number<uint32_t>(), in.text(), in.text(), in.text()};
}

}  // namespace omnihvd
