// A UDP socket that sends and receives many datagrams at a time: with sendmmsg and recvmmsg, and
// with runs of equally large datagrams as one (UDP_SEGMENT, UDP_GRO) if the kernel supports them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/slice.h"
#include "innetwork/addresses.h"
#include "transport/file_descriptor.h"

namespace omnihvd {

class UdpSocket {
 public:
  static constexpr size_t kMostHead = 48;  // bytes

  // Binds to this address, or at any free port. shared: with other sockets, as for a multicast
  // group. Throws Error.
  explicit UdpSocket(sockaddr_in at = socket_address(0), bool shared = false);
  ~UdpSocket();

  int fd() const { return socket_; }
  uint16_t port() const { return port_; }
  uint32_t receive_bytes() const { return receive_bytes_; }  // of the kernel's buffer
  bool in_runs() const { return runs_; }

  // Adds a datagram: head is copied; rest must stay unchanged until flush().
  void add(const sockaddr_in& to, const uint8_t* head, size_t head_bytes, Slice rest);
  // Datagrams that the kernel does not take are lost, as if in the network.
  void flush();

  using Taken = std::function<void(const sockaddr_in& from, const uint8_t* data, size_t size)>;
  // Receives datagrams, up to a bound. Returns false if there are none.
  bool receive(const Taken& taken);
  // Destinations with no listener, as their host reported.
  std::vector<sockaddr_in> refusals();
  void expect_refusals() { errors_ = true; }  // poll() has found an error

 private:
  struct Run {  // datagrams that go as one
    sockaddr_in to;
    size_t first, pieces;  // in pieces_, two for each datagram
    size_t segment, bytes;
    bool ended;  // by a shorter one
  };
  void send_all();
  void split(size_t from);

  const FileDescriptor socket_;
  uint16_t port_ = 0;
  uint32_t receive_bytes_ = 0;
  bool runs_ = false, errors_ = false;
  std::vector<std::array<uint8_t, kMostHead>> heads_;
  std::vector<iovec> pieces_;
  std::vector<Run> out_;
  std::vector<uint8_t> in_;
};

}  // namespace omnihvd
