#include "innetwork/udp/flow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/sha256.h"

namespace omnihvd {
namespace {

constexpr size_t kMostCopied = 2 << 20;  // bytes under way, besides one message
constexpr uint32_t kIpAndUdp = 28;       // bytes of their headers
constexpr uint32_t kMostPayload = 60000;

uint32_t random_number() {
  uint32_t number;
  std::memcpy(&number, random_bytes(sizeof number).data(), sizeof number);
  return number;
}

std::vector<uint8_t> joined(const Slice* slices, size_t count) {
  std::vector<uint8_t> all;
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += slices[i].size;
  all.reserve(size);
  for (size_t i = 0; i < count; ++i) {
    const auto* data = static_cast<const uint8_t*>(slices[i].data);
    all.insert(all.end(), data, data + slices[i].size);
  }
  return all;
}

}  // namespace

PacketKey flow_key(const std::string& transport_key, const std::string& nonce) {
  return PacketKey(to_string(hmac_sha256(transport_key, "flow" + nonce)));
}

PacketKey open_key(const std::string& transport_key) {
  return PacketKey(to_string(hmac_sha256(transport_key, "open")));
}

uint32_t sender_of_flows(const std::string& address) {
  uint32_t number;
  std::memcpy(&number, hmac_sha256("sender", address).data(), sizeof number);
  return number;
}

OutFlow::OutFlow(PeerId its_id, std::string its_address, const UdpAddress& peer,
                 const Route& its_route, const std::string& transport_key, uint32_t packet_overhead,
                 uint64_t now)
    : id(its_id),
      address(std::move(its_address)),
      name(name_of(peer)),
      route(its_route),
      nonce(random_bytes(16)),
      key(flow_key(transport_key, nonce)),
      opening_key(open_key(transport_key)),
      first(random_number()),
      payload(std::min(route.mtu - packet_overhead - kIpAndUdp, kMostPayload)),
      sender(first, payload, kWindow),
      peer(now) {
  sender.pace(packet_overhead + kIpAndUdp);
}

void OutFlow::send(const Slice* slices, size_t count, uint64_t cookie,
                   std::vector<uint64_t>* sent) {
  if (!waiting_.empty() || copied_ > kMostCopied) {
    waiting_.push_back({cookie, {slices, slices + count}, {}, false});
    return;
  }
  take(joined(slices, count));
  sent->push_back(cookie);
}

void OutFlow::take(std::vector<uint8_t> copy) {
  copied_ += copy.size();
  sender.send(next_copy_++, uint32_t(copy.size()));
  copies_.push_back({std::move(copy), false});
}

void OutFlow::take_waiting(std::vector<uint64_t>* sent) {
  while (!waiting_.empty() && copied_ <= kMostCopied) {
    Waiting one = std::move(waiting_.front());
    waiting_.pop_front();
    if (!one.detached) {
      sent->push_back(one.cookie);
      one.copy = joined(one.slices.data(), one.slices.size());
    }
    take(std::move(one.copy));
  }
}

void OutFlow::detach(uint64_t cookie) {
  for (Waiting& one : waiting_) {
    if (one.detached || one.cookie != cookie) continue;
    one.copy = joined(one.slices.data(), one.slices.size());
    one.slices.clear();
    one.detached = true;
    return;
  }
}

bool OutFlow::on_accept(uint64_t now, const Packet& packet) {
  if (is_open) return flow == packet.fields[0];
  is_open = true;
  flow = packet.fields[0];
  // The kernel's own headers take about half of its receive memory.
  sender.set_limit(std::max(32u, packet.fields[1] / 2 / payload));
  peer.opened(now);
  peer.heard(now);
  return true;
}

bool OutFlow::on_acknowledgement(uint64_t now, const Acknowledgement& said,
                                 std::vector<uint64_t>* sent) {
  std::vector<uint64_t> done;
  if (!sender.on_acknowledgement(now, said, &done)) return false;
  for (const uint64_t number : done) {
    Copy& copy = copies_[number - first_copy_];
    copied_ -= copy.bytes.size();
    copy = {{}, true};
  }
  while (!copies_.empty() && copies_.front().has_come) {
    copies_.pop_front();
    ++first_copy_;
  }
  if (!done.empty()) take_waiting(sent);
  return true;
}

void OutFlow::end(std::vector<uint64_t>* sent) {
  for (const Waiting& one : waiting_)
    if (!one.detached) sent->push_back(one.cookie);
  waiting_.clear();
  copies_.clear();
  first_copy_ = next_copy_;
  copied_ = 0;
}

const uint8_t* OutFlow::bytes_of(const DatagramSender::Piece& piece) const {
  if (piece.bytes == 0) return nullptr;
  return copies_[piece.message - first_copy_].bytes.data() + piece.header.offset;
}

}  // namespace omnihvd
