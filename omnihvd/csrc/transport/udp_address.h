// The address of a UDP transport: where it is to be reached, who is behind it, and what proves to
// it that one has its address.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "transport/process_watch.h"

namespace omnihvd {

// An address of IPv4 on an interface.
struct Place {
  uint32_t ip = 0;    // network byte order
  uint32_t mask = 0;  // network byte order
  uint32_t mtu = 0;   // bytes
};

struct UdpAddress {
  ProcessId process;
  std::string hostname;
  std::string network;  // namespace, on that host
  uint16_t port = 0;
  std::string key;          // random; who has it may send
  bool has_secret = false;  // and needs the job's secret, too
  std::vector<Place> places;
};

std::string encode_address(const UdpAddress& address);
UdpAddress decode_udp_address(const std::string& bytes);  // throws Error

// Of the interfaces that are up, but the loopback. Throws Error where the one that is named has
// none.
std::vector<Place> places_of_this_host(const std::string& interface);

// Both are of one host, and reach each other over its loopback.
bool share_loopback(const UdpAddress& a, const UdpAddress& b);

struct Route {
  sockaddr_in to{};
  uint32_t mtu = 0;  // bytes of a packet, with its IP header
};

// From one to another, over the interface that both have a network on, if there is one. Throws
// Error where there is no way.
Route route_between(const UdpAddress& from, const UdpAddress& to);

std::string text_of(const sockaddr_in& address);  // "10.0.0.1:4000"

}  // namespace omnihvd
