// Datagrams as a Transport: one socket, with one flow to each peer and one flow from each.
//
// datagram_sender.h and datagram_receiver.h cut messages into datagrams and retransmit
// lost ones. This file handles sockets, clocks and the liveness of peers. Each packet is
// authenticated before anything else looks at it (packet.h).
#include "innetwork/udp/transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/awake_clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/time_limits.h"
#include "innetwork/udp/flow.h"
#include "innetwork/udp/inbox.h"
#include "innetwork/udp/socket.h"
#include "transport/file_descriptor.h"
#include "transport/process_watch.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

constexpr uint64_t kMillisecond = 1000, kSecond = 1'000'000;  // all times are microseconds
constexpr uint64_t kLookEvery = kSecond;
constexpr uint64_t kBeginning = uint64_t(1) << 33;  // leaves earlier values for 32-bit times
constexpr char kEnded[] = "the process has ended";

class UdpTransport final : public Transport {
 public:
  explicit UdpTransport(const UdpOptions& options);
  ~UdpTransport() override;

  void set_handler(Handler* handler) override { handler_ = handler; }
  std::string address() const override { return encode_address(self_); }
  PeerId connect(const std::string& address) override;
  void disconnect(PeerId peer) override { --peers_.at(peer)->users; }
  void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) override;
  void detach(uint64_t cookie) override;
  bool progress() override;
  void wait(int timeout_ms) override;
  // Fails only if the counter is full: then the thread is awake anyway.
  void wake() override { eventfd_write(wake_, 1); }
  bool is_local(const std::string& address) const override {
    return share_network(self_, decode_udp_address(address));
  }
  std::string describe() const override;

 private:
  uint64_t clock() const { return options_.clock ? options_.clock() : steady_us(); }
  // Microseconds for which this process was awake.
  uint64_t now() { return kBeginning + awake_.at(clock()); }
  std::string key_of(const UdpAddress& address) const;

  bool move(uint64_t now);
  void on_datagram(uint64_t now, const sockaddr_in& from, const uint8_t* data, size_t size);
  bool on_answer(uint64_t now, const Packet& packet);
  bool pump(uint64_t now, OutFlow& flow);
  void look_after(uint64_t now, OutFlow& flow);
  void open(const OutFlow& flow);
  void probe(uint64_t now, OutFlow& flow);
  void send_small(const OutFlow& flow, PacketKind kind, uint32_t number, const uint32_t* fields,
                  const PacketKey& key);
  void fail(OutFlow& flow, const std::string& reason);
  bool dispatch();

  Handler* handler_ = nullptr;
  const UdpOptions options_;
  AwakeClock awake_;
  uint64_t stops_ = 0;  // of this process, as far as flows know
  UdpSocket socket_;
  ProcessWatch watch_;
  FileDescriptor wake_;
  UdpAddress self_;
  const std::string key_;
  uint32_t name_;  // sent when a flow opens
  UdpInbox inbox_;
  bool closing_ = false;

  std::unordered_map<PeerId, std::unique_ptr<OutFlow>> peers_;
  std::unordered_map<std::string, PeerId> by_address_;  // except failed peers
  PeerId next_peer_ = 0;
  uint64_t look_at_ = 0;  // when to check all flows

  std::deque<std::pair<PeerId, std::string>> failures_;
  std::vector<uint64_t> sent_;
};

UdpTransport::UdpTransport(const UdpOptions& options)
    : options_(options),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd"),
      self_{this_owner(), socket_.port(), random_bytes(32), !options.secret.empty(),
            places_of_this_host(options.interface)},
      key_(key_of(self_)),
      inbox_(socket_, key_, self_.has_secret, [this](const std::vector<uint8_t>& message) {
        if (!closing_) handler_->on_message(message.data(), message.size());
      }) {
  if (options.mtu != 0 && options.mtu < 576)
    throw Error("OMNIHVD_UDP_MTU=" + std::to_string(options.mtu) + ": allowed: 0, 576 .. 65535");
  for (Place& place : self_.places)
    if (options.mtu != 0) place.mtu = std::min(place.mtu, options.mtu);
  name_ = sender_of_flows(address());
}

UdpTransport::~UdpTransport() {
  closing_ = true;
  const uint64_t end = now() + kFlush.microseconds();
  const auto is_done = [](const auto& peer) { return peer.second->failed || peer.second->idle(); };
  while (!std::all_of(peers_.begin(), peers_.end(), is_done)) {
    if (now() > end) {
      log(LogLevel::info, "not all peers have taken their last messages within ", kFlush.text());
      break;
    }
    if (!move(now())) {
      sent_.clear();
      failures_.clear();
      wait(10);
    }
  }
}

// The job's secret does not travel with the address.
std::string UdpTransport::key_of(const UdpAddress& address) const {
  if (!address.has_secret) return address.key;
  return to_string(hmac_sha256(options_.secret, "udp" + address.key));
}

PeerId UdpTransport::connect(const std::string& bytes) {
  const auto known = by_address_.find(bytes);
  if (known != by_address_.end()) {
    ++peers_.at(known->second)->users;
    return known->second;
  }
  const UdpAddress address = decode_udp_address(bytes);
  const std::string name = name_of(address);
  const PeerId id = next_peer_++ % kFlows;
  try {
    if (address.has_secret != self_.has_secret)
      throw Error(std::string("it has ") + (address.has_secret ? "a" : "no") +
                  " OMNIHVD_SECRET, and this process " + (address.has_secret ? "none" : "one") +
                  ": over UDP all ranks need the same, or none has any");
    Route route = route_between(self_, address);
    if (options_.mtu != 0) route.mtu = std::min(route.mtu, options_.mtu);
    const bool lives = !options_.watches || watch_.add(id, address.process);
    auto flow = std::make_unique<OutFlow>(id, bytes, address, route, key_of(address),
                                          uint32_t(kDataHead), now());
    by_address_[bytes] = id;
    OutFlow& kept = *(peers_[id] = std::move(flow));
    if (!lives) fail(kept, kEnded);
  } catch (const Error& why) {
    watch_.remove(id);
    throw Error("cannot connect to " + name + ": " + why.what());
  }
  look_at_ = 0;
  return id;
}

void UdpTransport::send(PeerId id, const Slice* slices, size_t count, uint64_t cookie) {
  OutFlow& flow = *peers_.at(id);
  if (flow.failed)
    sent_.push_back(cookie);
  else
    flow.send(slices, count, cookie, &sent_);
}

void UdpTransport::detach(uint64_t cookie) {
  const auto over = std::find(sent_.begin(), sent_.end(), cookie);
  if (over != sent_.end()) {
    sent_.erase(over);
    return;
  }
  for (auto& [id, flow] : peers_) flow->detach(cookie);
}

bool UdpTransport::progress() {
  const bool moved = move(now());
  for (const PeerId id : watch_.ended(!moved))
    if (const auto found = peers_.find(id); found != peers_.end()) fail(*found->second, kEnded);
  return dispatch() || moved;
}

bool UdpTransport::move(uint64_t now) {
  bool moved = socket_.receive([&](const sockaddr_in& from, const uint8_t* data, size_t size) {
    on_datagram(now, from, data, size);
  });
  inbox_.acknowledge();
  for (const sockaddr_in& to : socket_.refusals())
    for (auto& [id, flow] : peers_) {
      if (flow->route.to.sin_port != to.sin_port ||
          flow->route.to.sin_addr.s_addr != to.sin_addr.s_addr)
        continue;
      flow->peer.refused(now);
      look_at_ = std::min(look_at_, flow->peer.say_at());
    }
  now = this->now();
  const bool stopped = std::exchange(stops_, awake_.stops()) != awake_.stops();
  const bool look = stopped || now >= look_at_;
  if (look) look_at_ = now + kLookEvery;
  for (auto& [id, flow] : peers_) {
    if (flow->failed) continue;
    if (stopped) flow->peer.stopped(now);
    if (look) look_after(now, *flow);
    if (flow->is_open && !flow->failed) moved |= pump(now, *flow);
  }
  socket_.flush();
  return moved;
}

void UdpTransport::on_datagram(uint64_t now, const sockaddr_in& from, const uint8_t* data,
                               size_t size) {
  const auto is_taken = [&](const Packet& packet) {
    const bool to_us = packet.kind == PacketKind::open || packet.kind == PacketKind::data ||
                       packet.kind == PacketKind::probe;
    return to_us ? inbox_.on_packet(now, from, packet) : on_answer(now, packet);
  };
  Packet packet;
  if (!read_packet(data, size, &packet) || !is_taken(packet)) ++packet_counts().refused;
}

// Handles an answer from a peer to which we send.
bool UdpTransport::on_answer(uint64_t now, const Packet& packet) {
  const auto found = peers_.find(packet.flow);
  if (found == peers_.end() || found->second->failed) return false;
  OutFlow& flow = *found->second;
  if (!is_authentic(packet, flow.key, true)) return false;
  if (packet.kind == PacketKind::accept) {
    if (!flow.on_accept(now, packet))
      fail(flow,
           "it gave this process up, after it could not be reached for " + kUdpSilence.text());
    return true;
  }
  if (!flow.is_open) return false;
  if (packet.kind == PacketKind::alive) {
    if (packet.fields[0] != flow.stamp) return false;
  } else {
    const Acknowledgement said{
        packet.fields[0], packet.fields[1], {packet.rest, packet.rest + packet.rest_bytes}};
    if (!flow.on_acknowledgement(now, said, &sent_)) return false;
  }
  flow.peer.heard(now);
  return true;
}

bool UdpTransport::pump(uint64_t now, OutFlow& flow) {
  const uint64_t sent = flow.sender.sent(), again = flow.sender.again();
  DatagramSender::Piece piece;
  while (flow.sender.next(now, &piece)) {
    const Datagram& header = piece.header;
    const uint32_t fields[] = {header.sequence, header.stamp, header.size, header.offset};
    const uint8_t* const bytes = flow.bytes_of(piece);
    uint8_t head[kPacketHead];
    const size_t size = write_packet(PacketKind::data, flow.flow, fields, flow.key, bytes,
                                     self_.has_secret ? piece.bytes : 0, head);
    socket_.add(flow.route.to, head, size, {bytes, piece.bytes});
  }
  packet_counts().sent += flow.sender.sent() - sent;
  packet_counts().again += flow.sender.again() - again;
  return flow.sender.sent() > sent;
}

void UdpTransport::send_small(const OutFlow& flow, PacketKind kind, uint32_t number,
                              const uint32_t* fields, const PacketKey& key) {
  uint8_t head[kPacketHead];
  const size_t size = write_packet(kind, number, fields, key, nullptr, 0, head);
  socket_.add(flow.route.to, head, size, {nullptr, 0});
}

void UdpTransport::open(const OutFlow& flow) {
  uint32_t fields[kPacketFields] = {flow.first, flow.payload, kWindow, name_};
  std::memcpy(&fields[4], flow.nonce.data(), 16);
  send_small(flow, PacketKind::open, flow.id, fields, flow.opening_key);
}

void UdpTransport::probe(uint64_t now, OutFlow& flow) {
  flow.stamp = uint32_t(now);
  send_small(flow, PacketKind::probe, flow.flow, &flow.stamp, flow.key);
}

// Opens a flow, probes whether the peer is still there, or gives the flow up.
void UdpTransport::look_after(uint64_t now, OutFlow& flow) {
  switch (flow.peer.end(now, watch_.watches(flow.id), flow.sender.time_outs())) {
    case DatagramPeer::End::none: break;
    case DatagramPeer::End::refused:
      return fail(flow, "nobody listens there any more: it has ended, or has closed its transport");
    case DatagramPeer::End::never_answered:
      return fail(flow, "no answer from " + text_of(flow.route.to) + " within " + kUdpFirst.text() +
                            ": do datagrams get through between the hosts (firewalls, "
                            "OMNIHVD_UDP_INTERFACE)?");
    case DatagramPeer::End::silent:
      return fail(flow, "it has sent nothing for " + kUdpSilence.text());
    case DatagramPeer::End::swallowed:
      return fail(flow,
                  "it answers, but full datagrams do not get through: set OMNIHVD_UDP_MTU to "
                  "what the path takes");
  }
  const DatagramPeer::Say say = flow.peer.say(now);
  if (say == DatagramPeer::Say::open || say == DatagramPeer::Say::both) open(flow);
  if (say == DatagramPeer::Say::probe || say == DatagramPeer::Say::both) probe(now, flow);
  look_at_ = std::min(look_at_, flow.peer.say_at());
}

void UdpTransport::fail(OutFlow& flow, const std::string& reason) {
  if (flow.failed) return;
  flow.failed = true;
  by_address_.erase(flow.address);
  failures_.emplace_back(flow.id, flow.name + ": " + reason);
}

// Tells the handler what was noted before the call: first failures, then completed sends.
bool UdpTransport::dispatch() {
  bool any = !failures_.empty() || !sent_.empty();
  for (size_t count = failures_.size(); count > 0; --count) {
    const auto [id, reason] = std::move(failures_.front());
    failures_.pop_front();
    watch_.remove(id);
    OutFlow& flow = *peers_.at(id);
    flow.end(&sent_);
    inbox_.forget(sender_of_flows(flow.address));
    flow.told = true;
    if (flow.users > 0) handler_->on_peer_failed(id, reason);
  }
  for (size_t count = sent_.size(); count > 0 && !sent_.empty(); --count) {
    const uint64_t cookie = sent_.front();
    sent_.erase(sent_.begin());
    handler_->on_sent(cookie);
  }
  for (auto at = peers_.begin(); any && at != peers_.end();)
    at = at->second->told && at->second->users == 0 ? peers_.erase(at) : std::next(at);
  return any;
}

void UdpTransport::wait(int timeout_ms) {
  if (!failures_.empty() || !sent_.empty()) return;
  uint64_t until = peers_.empty() ? UINT64_MAX : look_at_;
  for (const auto& [id, flow] : peers_)
    if (flow->is_open && !flow->failed)
      until = std::min(until, flow->sender.wake_at().value_or(UINT64_MAX));
  const uint64_t now = this->now();
  if (const int limit = watch_.limit(timeout_ms); limit >= 0)
    until = std::min(until, now + uint64_t(limit) * kMillisecond);
  const uint64_t left = until > now ? until - now : 0;
  const timespec time{time_t(left / kSecond), long(left % kSecond * 1000)};
  pollfd events[] = {{socket_.fd(), POLLIN, 0}, {wake_, POLLIN, 0}, {watch_.fd(), POLLIN, 0}};
  if (ppoll(events, 3, until == UINT64_MAX ? nullptr : &time, nullptr) <= 0) return;
  if (events[0].revents & POLLERR) socket_.expect_refusals();
  if (events[1].revents) {
    uint64_t wakes;
    [[maybe_unused]] const ssize_t n = read(wake_, &wakes, sizeof wakes);  // resets it
  }
  if (events[2].revents) watch_.look_now();
}

std::string UdpTransport::describe() const {
  std::string text = std::string("UDP: port ") + std::to_string(socket_.port()) +
                     (socket_.in_runs() ? ", segmented by the kernel" : "");
  std::map<uint32_t, int> payloads;
  for (const auto& [id, flow] : peers_)
    if (flow->is_open && !flow->failed) ++payloads[flow->payload];
  for (const auto& [payload, count] : payloads)
    text += "; " + std::to_string(count) + " connected over udp/" + std::to_string(payload);
  return text;
}

}  // namespace

std::unique_ptr<Transport> make_udp_transport(const UdpOptions& options) {
  return std::make_unique<UdpTransport>(options);
}

}  // namespace omnihvd
