// A socket of UDP that sends and receives many datagrams at a time: sendmmsg and recvmmsg, and runs
// of datagrams of one size as one (UDP_SEGMENT, UDP_GRO) where the kernel has it.
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
#include "transport/file_descriptor.h"

namespace omnihvd {

class UdpSocket {
 public:
  static constexpr size_t kMostHead = 48;  // bytes

  UdpSocket();  // at any free port; throws Error
  // At this address; shared: with other sockets, as of a multicast group. Throws Error.
  explicit UdpSocket(sockaddr_in at, bool shared = false);

  int fd() const { return socket_; }
  uint16_t port() const { return port_; }
  uint32_t receive_bytes() const { return receive_bytes_; }  // that the kernel keeps for us
  bool in_runs() const { return runs_; }

  // A datagram, of head (which is copied) and rest (which must stay until flush()).
  void add(const sockaddr_in& to, const uint8_t* head, size_t head_bytes, Slice rest);
  // What the kernel does not take is lost, as in the network.
  void flush();

  using Taken = std::function<void(const sockaddr_in& from, const uint8_t* data, size_t size)>;
  // What has come, up to a bound; false: nothing.
  bool receive(const Taken& taken);
  // Those whom datagrams have not reached since nobody listens there, as their host said.
  std::vector<sockaddr_in> refusals();
  void expect_refusals() { errors_ = true; }  // poll() has found an error

 private:
  struct Run {  // datagrams that go as one
    sockaddr_in to;
    size_t first, pieces;  // of pieces_, two to a datagram
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
