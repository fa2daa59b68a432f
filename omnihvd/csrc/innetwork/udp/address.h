// The address of a UDP transport: where to reach it, its owner's identity, and the key that proves
// to it that a sender has this address.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "transport/address.h"

namespace omnihvd {

// An IPv4 address of an interface.
struct Place {
  uint32_t ip = 0;    // network byte order
  uint32_t mask = 0;  // network byte order
  uint32_t mtu = 0;   // bytes
};

struct UdpAddress : AddressOwner {
  uint16_t port = 0;
  std::string key;          // random; its holder may send
  bool has_secret = false;  // the sender also needs the job's secret
  std::vector<Place> places;
};

std::string encode_address(const UdpAddress& address);
UdpAddress decode_udp_address(const std::string& bytes);  // throws Error

// The addresses of all interfaces that are up, except the loopback. Throws Error if the named
// interface has none.
std::vector<Place> places_of_this_host(const std::string& interface);

struct Route {
  sockaddr_in to{};
  uint32_t mtu = 0;  // bytes of a packet, with its IP header
};

// The route from one to the other, over an interface with a network that both have, if there is
// one. Throws Error if there is no route.
Route route_between(const UdpAddress& from, const UdpAddress& to);

std::string text_of(const sockaddr_in& address);  // "10.0.0.1:4000"

}  // namespace omnihvd
