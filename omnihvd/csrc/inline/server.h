// The user space of an aggregator in the data path: a socket of UDP at which workers join, and
// which makes the sums itself where the data path is user space. Blocks its thread.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inline/jobs.h"
#include "inline/slot_aggregator.h"
#include "transport/file_descriptor.h"
#include "transport/udp_socket.h"

namespace omnihvd {

// A network interface that hands contributions to user space beside the socket.
class InlineInterface {
 public:
  virtual ~InlineInterface() = default;
  // Readable when something has come.
  virtual std::vector<int> descriptors() const = 0;
  // Takes what has come, up to a bound, and sends answers; false: nothing.
  virtual bool exchange(SlotAggregator& sums) = 0;
};

class InlineServer {
 public:
  struct Options {
    std::string secret;
    std::string host;   // an IPv4 address of the interface at which workers reach it
    uint16_t port = 0;  // 0: any free one
    std::string group;  // an IPv4 multicast address for results, at the same port; empty: to each
    uint32_t jobs = 16;
    uint16_t slots = 128;
  };
  // Throws Error. plane: none: sums are made here, of what comes to the socket and by `interface`,
  // if there is one. Both must outlive the server.
  InlineServer(const Options& options, InlinePlane* plane, InlineInterface* interface);

  // Until stop(), which any thread may call.
  void run();
  void stop();
  uint16_t port() const { return socket_.port(); }
  // Of the sums made here; in the order of InlineCount.
  std::array<uint64_t, kInlineCounts> counts() const;

 private:
  void take(const sockaddr_in& from, const uint8_t* data, size_t size);
  std::vector<pollfd> waits() const;
  void send(const SlotAggregator::Answer& answer, const sockaddr_in& from);
  void ask();
  void take_refusals();
  void tell_of(size_t job);
  std::string who_lives() const;

  UdpSocket socket_;
  const FileDescriptor stop_;
  const uint64_t group_;  // 0: none
  SlotAggregator sums_;   // has no jobs where a plane has
  InlinePlane& plane_;    // that, or sums_
  InlineInterface* const interface_;
  InlineJobs jobs_;
};

}  // namespace omnihvd
