#include "innetwork/udp/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "transport/file_descriptor.h"

namespace omnihvd {
namespace {

constexpr char kUdpAddress[] = "omnihvd udp 1";

constexpr uint32_t kLeastMtu = 576;

uint32_t mtu_of(int socket, const char* interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface, sizeof request.ifr_name - 1);
  return ioctl(socket, SIOCGIFMTU, &request) == 0 ? uint32_t(request.ifr_mtu) : 1500;
}

uint32_t ip_of(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr;
}

// The MTU of the path to `to`, as far as the kernel knows it.
uint32_t mtu_to(const sockaddr_in& to) {
  const FileDescriptor probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  if (connect(probe, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    throw Error(text_of(to) + " cannot be reached: " + std::strerror(errno));
  int mtu = 0;
  socklen_t size = sizeof mtu;
  if (getsockopt(probe, IPPROTO_IP, IP_MTU, &mtu, &size) != 0 || mtu < int(kLeastMtu)) return 1500;
  return uint32_t(mtu);
}

}  // namespace

std::string encode_address(const UdpAddress& address) {
  BytesWriter body;
  write_owner(body, address);
  body.u64(address.port);
  body.text(address.key);
  body.u64(address.has_secret);
  body.u64(address.places.size());
  for (const Place& place : address.places) {
    body.u64(place.ip);
    body.u64(place.mask);
    body.u64(place.mtu);
  }
  return wrap_address(kUdpAddress, body.bytes());
}

UdpAddress decode_udp_address(const std::string& bytes) {
  const std::string body = unwrap_address(kUdpAddress, bytes);
  BytesReader in(body);
  UdpAddress address{};
  static_cast<AddressOwner&>(address) = read_owner(in);
  address.port = in.number<uint16_t>();
  address.key = in.text();
  address.has_secret = in.number<bool>();
  address.places.resize(in.count());
  for (Place& place : address.places) {
    place.ip = in.number<uint32_t>();
    place.mask = in.number<uint32_t>();
    place.mtu = std::max(in.number<uint32_t>(), kLeastMtu);
  }
  return address;
}

std::vector<Place> places_of_this_host(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw Error(std::string("getifaddrs failed: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  const FileDescriptor asked(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  std::vector<Place> places;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || !at->ifa_netmask) continue;
    if (!(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK)) continue;
    if (!interface.empty() && interface != at->ifa_name) continue;
    places.push_back({ip_of(at->ifa_addr), ip_of(at->ifa_netmask), mtu_of(asked, at->ifa_name)});
  }
  if (places.empty() && !interface.empty())
    throw Error("OMNIHVD_UDP_INTERFACE=" + interface +
                ": there is no such interface that is up and has an address of IPv4");
  return places;
}

Route route_between(const UdpAddress& from, const UdpAddress& to) {
  Route route;
  route.to.sin_family = AF_INET;
  route.to.sin_port = htons(to.port);
  if (share_network(from, to)) {
    route.to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    route.mtu = mtu_to(route.to);
    return route;
  }
  if (to.places.empty())
    throw Error("its host has no interface that is up and has an address of IPv4: give it one");
  const auto is_near = [&](const Place& theirs) {
    return std::any_of(from.places.begin(), from.places.end(), [&](const Place& ours) {
      return ours.mask == theirs.mask && ((ours.ip ^ theirs.ip) & ours.mask) == 0;
    });
  };
  auto chosen = std::find_if(to.places.begin(), to.places.end(), is_near);
  if (chosen == to.places.end()) chosen = to.places.begin();
  route.to.sin_addr.s_addr = chosen->ip;
  route.mtu = std::min(mtu_to(route.to), chosen->mtu);
  return route;
}

std::string text_of(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return std::string(text) + ":" + std::to_string(ntohs(address.sin_port));
}

}  // namespace omnihvd
