// IPv4 addresses with a port, as one number and as the kernel stores them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <string>

#include "base/error.h"

namespace omnihvd {

inline uint64_t number_of(const sockaddr_in& at) {
  return uint64_t{ntohl(at.sin_addr.s_addr)} << 16 | ntohs(at.sin_port);
}

inline sockaddr_in socket_address(uint64_t number) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(uint32_t(number >> 16));
  at.sin_port = htons(uint16_t(number));
  return at;
}

// Throws Error if `host` is not an IPv4 address.
inline uint64_t ipv4(const std::string& host, uint16_t port) {
  in_addr at{};
  if (inet_pton(AF_INET, host.c_str(), &at) != 1)
    throw Error(host + " is no IPv4 address: in-network aggregation supports IPv4 only");
  return uint64_t{ntohl(at.s_addr)} << 16 | port;
}

}  // namespace omnihvd
