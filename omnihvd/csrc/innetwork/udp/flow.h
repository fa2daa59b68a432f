// A flow: the datagrams that one UDP transport sends to another.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/slice.h"
#include "innetwork/udp/address.h"
#include "innetwork/udp/datagram_peer.h"
#include "innetwork/udp/datagram_sender.h"
#include "innetwork/udp/packet.h"
#include "transport/transport.h"

namespace omnihvd {

constexpr uint32_t kWindow = 8192;              // datagrams of a flow that are tracked
constexpr uint32_t kLargestMessage = 1u << 28;  // bytes

// The key of a flow to a transport with this key. nonce: the flow's random number.
PacketKey flow_key(const std::string& transport_key, const std::string& nonce);
// The key of packets that open flows.
PacketKey open_key(const std::string& transport_key);
// A number that distinguishes the flows of a transport from those of others.
uint32_t sender_of_flows(const std::string& address);

// Messages to one peer. It copies the messages that it takes; while too many bytes of copies are
// under way, further messages wait in the caller's memory.
class OutFlow {
 public:
  struct Waiting {
    uint64_t cookie;
    std::vector<Slice> slices;
    std::vector<uint8_t> copy;  // once detached
    bool detached = false;
  };

  OutFlow(PeerId id, std::string address, const UdpAddress& peer, const Route& route,
          const std::string& transport_key, uint32_t packet_overhead, uint64_t now);

  // Appends to `sent` the cookies of copied messages; the caller may reuse their buffers.
  void send(const Slice* slices, size_t count, uint64_t cookie, std::vector<uint64_t>* sent);
  void detach(uint64_t cookie);
  // Returns false if the receiver no longer knows the flow; it gives no number twice.
  bool on_accept(uint64_t now, const Packet& packet);
  bool on_acknowledgement(uint64_t now, const Acknowledgement& said, std::vector<uint64_t>* sent);
  void end(std::vector<uint64_t>* sent);  // returns waiting messages, forgets the rest
  const uint8_t* bytes_of(const DatagramSender::Piece& piece) const;
  bool idle() const { return sender.idle() && waiting_.empty(); }

  const PeerId id;
  const std::string address, name;
  const Route route;
  const std::string nonce;
  const PacketKey key, opening_key;
  const uint32_t first, payload;
  DatagramSender sender;
  DatagramPeer peer;
  uint32_t users = 1;  // connect() less disconnect()
  uint32_t flow = 0;   // the receiver's number for it
  uint32_t stamp = 0;  // of the last probe
  bool is_open = false, failed = false, told = false;

 private:
  void take(std::vector<uint8_t> copy);
  void take_waiting(std::vector<uint64_t>* sent);

  std::deque<Waiting> waiting_;
  struct Copy {
    std::vector<uint8_t> bytes;
    bool has_come = false;
  };
  std::deque<Copy> copies_;  // by number, from first_copy_
  uint64_t first_copy_ = 0, next_copy_ = 0;
  size_t copied_ = 0;  // bytes
};

}  // namespace omnihvd
