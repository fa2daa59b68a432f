// The flows to a UDP transport: what they deliver, and the answers to them.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/packet.h"
#include "innetwork/udp/socket.h"

namespace omnihvd {

class UdpInbox {
 public:
  using Taken = std::function<void(const std::vector<uint8_t>& message)>;

  // key: the transport's. covered: whether tags of data cover all of it.
  UdpInbox(UdpSocket& socket, std::string key, bool covered, Taken taken);

  // Handles packets of the kinds open, data and probe. Returns false, without effect, if the packet
  // is refused.
  bool on_packet(uint64_t now, const sockaddr_in& from, const Packet& packet);
  void acknowledge();  // what has arrived since the last call
  // Forgets the flows of a sender that is gone. Other flows stay, however long they are silent,
  // because their senders may have been stopped; unless there are too many.
  void forget(uint32_t sender);

 private:
  struct Flow {
    sockaddr_in from;
    uint32_t number;  // the sender's number for it
    uint32_t sender;
    PacketKey key;
    std::string nonce;
    DatagramReceiver receiver;
    uint64_t heard_at;
    bool is_to_acknowledge = false;
  };
  bool on_open(uint64_t now, const sockaddr_in& from, const Packet& packet);
  bool on_data(Flow& flow, const Packet& packet);
  void answer(const Flow& flow, PacketKind kind, const uint32_t* fields);
  void accept(const Flow& flow, uint32_t index);
  void forget_most_silent();

  UdpSocket& socket_;
  const std::string key_;
  const PacketKey open_key_;
  const bool covered_;
  const Taken taken_;
  std::unordered_map<uint32_t, std::unique_ptr<Flow>> flows_;
  std::unordered_map<std::string, uint32_t> by_nonce_;
  uint32_t next_ = 0;
  std::vector<uint32_t> to_acknowledge_;
};

}  // namespace omnihvd
