#include "innetwork/xdp/device.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "innetwork/addresses.h"
#include "transport/file_descriptor.h"

namespace omnihvd {
namespace {

constexpr char kRights[] = ": it takes root, or the capabilities CAP_BPF and CAP_NET_ADMIN";

// Leaves errno 0 if the kernel has answered.
ifreq ask(const std::string& interface, unsigned long what, void* data = nullptr) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  ifreq request{};
  if (interface.empty() || interface.size() >= sizeof request.ifr_name)
    throw Error("'" + interface + "' is no interface's name");
  std::memcpy(request.ifr_name, interface.c_str(), interface.size());
  if (data) request.ifr_data = static_cast<char*>(data);
  errno = 0;
  ioctl(socket, what, &request);
  return request;
}

ifreq answered(const std::string& interface, unsigned long what) {
  const ifreq request = ask(interface, what);
  if (errno == 0) return request;
  if (errno == ENODEV) throw Error("there is no interface " + interface + " (see: ip link)");
  if (errno == EADDRNOTAVAIL)
    throw Error("interface " + interface + " has no IPv4 address: give it one");
  throw Error("interface " + interface + ": " + why(errno));
}

}  // namespace

std::string why(int error) {
  const std::string said = std::strerror(error);
  if (error == ENOBUFS) return said + ": raise ulimit -l, or give CAP_IPC_LOCK";
  return said + (error == EPERM || error == EACCES ? kRights : "");
}

std::string interface_address(const std::string& interface) {
  if (!(answered(interface, SIOCGIFFLAGS).ifr_flags & IFF_UP))
    throw Error("interface " + interface + " is not up: ip link set " + interface + " up");
  const ifreq found = answered(interface, SIOCGIFADDR);
  sockaddr_in at;
  std::memcpy(&at, &found.ifr_addr, sizeof at);
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &at.sin_addr, text, sizeof text);
}

uint32_t receive_queues(const std::string& interface) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ask(interface, SIOCETHTOOL, &channels);
  return std::max(channels.rx_count + channels.combined_count, 1u);  // a driver may not report this
}

inline_place place_of(const std::string& host, uint16_t port) {
  const sockaddr_in at = socket_address(ipv4(host, port));
  return {at.sin_addr.s_addr, at.sin_port, {}};
}

inline_place group_place(const std::string& group, uint16_t port) {
  inline_place place = place_of(group, port);
  const uint32_t low = ntohl(place.address) & 0x7FFFFF;  // a MAC address holds 23 of the 28 bits
  const uint8_t mac[] = {0x01, 0x00, 0x5E, uint8_t(low >> 16), uint8_t(low >> 8), uint8_t(low)};
  std::memcpy(place.mac, mac, sizeof mac);
  return place;
}

}  // namespace omnihvd
