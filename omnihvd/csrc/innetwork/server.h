// The user space of an in-network aggregator: a UDP socket where workers join. It also makes the
// sums if there is no data plane. Blocks its thread.
#pragma once

#include <sys/eventfd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "innetwork/jobs.h"
#include "innetwork/slot_aggregator.h"
#include "innetwork/udp/socket.h"
#include "transport/file_descriptor.h"

namespace omnihvd {

// A network interface that delivers contributions to user space, besides the socket.
class InlineInterface {
 public:
  virtual ~InlineInterface() = default;
  // Readable when something has arrived.
  virtual std::vector<int> descriptors() const = 0;
  // Processes what has arrived, up to a bound, and sends answers; false if there was nothing.
  virtual bool exchange(SlotAggregator& sums) = 0;
};

class InlineServer {
 public:
  struct Options {
    std::string secret;
    std::string host;   // an IPv4 address of the interface where workers reach it
    uint16_t port = 0;  // 0: any free one
    std::string group;  // an IPv4 multicast address for results, same port; empty: to each worker
    uint32_t jobs = 16;
    uint16_t slots = 128;
  };
  // Throws Error. plane: if null, this server sums what arrives at the socket and at `interface`,
  // if there is one. Both must outlive the server.
  InlineServer(const Options& options, InlinePlane* plane, InlineInterface* interface);

  // Runs until stop(), which any thread may call.
  void run();
  void stop() { eventfd_write(stop_, 1); }
  uint16_t port() const { return socket_.port(); }
  // Counts for the sums made here, in the order of InlineCount.
  std::array<uint64_t, kInlineCounts> counts() const { return sums_.counts(); }

 private:
  void take(const sockaddr_in& from, const uint8_t* data, size_t size);
  void send(const SlotAggregator::Answer& answer, const sockaddr_in& from);
  void ask();
  void take_refusals();
  void tell_of(size_t job);
  std::string who_lives() const;

  UdpSocket socket_;
  const FileDescriptor stop_;
  const uint64_t group_;  // 0: none
  SlotAggregator sums_;   // has no jobs if a plane has them
  InlinePlane& plane_;    // the plane passed in, or sums_
  InlineInterface* const interface_;
  InlineJobs jobs_;
};

}  // namespace omnihvd
