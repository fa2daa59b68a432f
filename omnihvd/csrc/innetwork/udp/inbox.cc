#include "innetwork/udp/inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "innetwork/udp/flow.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

constexpr size_t kMostFlows = 1 << 14;  // some kilobytes each

}  // namespace

UdpInbox::UdpInbox(UdpSocket& socket, std::string key, bool covered, Taken taken)
    : socket_(socket),
      key_(std::move(key)),
      open_key_(open_key(key_)),
      covered_(covered),
      taken_(std::move(taken)) {}

bool UdpInbox::on_packet(uint64_t now, const sockaddr_in& from, const Packet& packet) {
  if (packet.kind == PacketKind::open) return on_open(now, from, packet);
  const auto found = flows_.find(packet.flow);
  if (found == flows_.end() || !is_authentic(packet, found->second->key, covered_)) return false;
  Flow& flow = *found->second;
  flow.heard_at = now;
  if (packet.kind == PacketKind::data) return on_data(flow, packet);
  answer(flow, PacketKind::alive, packet.fields);
  return true;
}

bool UdpInbox::on_open(uint64_t now, const sockaddr_in& from, const Packet& packet) {
  if (!is_authentic(packet, open_key_, true)) return false;
  const uint32_t first = packet.fields[0], payload = packet.fields[1], window = packet.fields[2];
  const std::string nonce(reinterpret_cast<const char*>(&packet.fields[4]), 16);
  if (const auto known = by_nonce_.find(nonce); known != by_nonce_.end()) {
    accept(*flows_.at(known->second), known->second);
    return true;
  }
  if (payload == 0 || payload > 65535 || window == 0 || window > kWindow) return false;
  if (flows_.size() >= kMostFlows) forget_most_silent();
  while (flows_.count(next_) > 0) next_ = (next_ + 1) % kFlows;
  auto flow = std::make_unique<Flow>(
      Flow{from, packet.flow, packet.fields[3], flow_key(key_, nonce), nonce,
           DatagramReceiver(first, payload, window, kLargestMessage, true), now});
  accept(*flow, next_);
  by_nonce_[nonce] = next_;
  flows_[next_] = std::move(flow);
  next_ = (next_ + 1) % kFlows;
  return true;
}

void UdpInbox::accept(const Flow& flow, uint32_t index) {
  const uint32_t fields[] = {index, socket_.receive_bytes()};
  answer(flow, PacketKind::accept, fields);
}

void UdpInbox::answer(const Flow& flow, PacketKind kind, const uint32_t* fields) {
  uint8_t head[kPacketHead];
  const size_t size = write_packet(kind, flow.number, fields, flow.key, nullptr, 0, head);
  socket_.add(flow.from, head, size, {nullptr, 0});
}

bool UdpInbox::on_data(Flow& flow, const Packet& packet) {
  ++packet_counts().received;
  const Datagram header{packet.fields[0], packet.fields[1], packet.fields[2], packet.fields[3]};
  const auto came = flow.receiver.on_datagram(header, packet.rest, packet.rest_bytes);
  if (came == DatagramReceiver::Taken::refused) return false;
  if (came == DatagramReceiver::Taken::duplicate) ++packet_counts().repeated;
  if (!std::exchange(flow.is_to_acknowledge, true)) to_acknowledge_.push_back(packet.flow);
  std::vector<uint8_t> message;
  while (flow.receiver.next_message(&message)) taken_(message);
  return true;
}

void UdpInbox::acknowledge() {
  for (const uint32_t index : to_acknowledge_) {
    const auto found = flows_.find(index);
    if (found == flows_.end()) continue;
    Flow& flow = *found->second;
    flow.is_to_acknowledge = false;
    const Acknowledgement made = flow.receiver.acknowledgement();
    const uint32_t fields[] = {made.floor, made.stamp};
    uint8_t head[kPacketHead];
    const size_t size = write_packet(PacketKind::acknowledgement, flow.number, fields, flow.key,
                                     made.bits.data(), made.bits.size(), head);
    socket_.add(flow.from, head, size, {made.bits.data(), made.bits.size()});
    if (!made.bits.empty()) socket_.flush();  // they live until the end of this iteration
  }
  to_acknowledge_.clear();
}

void UdpInbox::forget(uint32_t sender) {
  for (auto at = flows_.begin(); at != flows_.end();) {
    const bool gone = at->second->sender == sender;
    if (gone) by_nonce_.erase(at->second->nonce);
    at = gone ? flows_.erase(at) : std::next(at);
  }
}

void UdpInbox::forget_most_silent() {
  const auto one = std::min_element(flows_.begin(), flows_.end(), [](const auto& a, const auto& b) {
    return a.second->heard_at < b.second->heard_at;
  });
  by_nonce_.erase(one->second->nonce);
  flows_.erase(one);
}

}  // namespace omnihvd
