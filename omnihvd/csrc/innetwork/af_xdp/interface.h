// A network interface that delivers contributions to user space by AF_XDP, bypassing the kernel's
// UDP, for the sums of slot_aggregator.h. An XDP program (redirect.bpf.c) hands them over for as
// long as this object lives. Results go out as Ethernet multicast on the interface where the last
// contribution came in. Like the XDP aggregator, it does not verify UDP checksums and sends none.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "innetwork/af_xdp/socket.h"
#include "innetwork/server.h"
#include "innetwork/xdp/frame.h"
#include "innetwork/xdp/program.h"

namespace omnihvd {

class AfXdpInterface final : public InlineInterface {
 public:
  struct Options {
    std::string object;     // the compiled program's file
    std::string interface;  // its name
    std::string host;       // its IPv4 address, where contributions arrive
    uint16_t port = 0;
    std::string group;  // IPv4 multicast address for results
  };
  explicit AfXdpInterface(const Options& options);  // throws Error

  std::vector<int> descriptors() const override;
  bool exchange(SlotAggregator& sums) override;

  size_t queues() const { return sockets_.size(); }
  bool is_zero_copy() const;
  // Received frames and outgoing answers that were dropped for lack of room.
  uint64_t dropped() const;
  const XdpProgram& program() const { return program_; }

 private:
  void take(XskSocket& from, SlotAggregator& sums, const uint8_t* data, size_t size);

  const inline_place own_, group_;
  XdpProgram program_;
  std::deque<XskSocket> sockets_;  // [receive queue]
  uint64_t unsent_ = 0;
};

}  // namespace omnihvd
