// Messages over a simulated network that loses datagrams: each pair of engine threads has one of
// the protocol's own senders and receivers (innetwork/udp/datagram_sender.h) in each direction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"
#include "simulator/csrc/network.h"

namespace omnihvd::simulation {

class Datagrams {
 public:
  // loss: the share of datagrams and acknowledgements that do not arrive.
  // threads: the number of engine threads on each host.
  Datagrams(Network& network, const Costs& costs, double loss, uint32_t threads)
      : network_(network),
        loss_(loss),
        threads_(threads),
        limit_(uint32_t(std::clamp(kUnderWay * costs.rate / kPayload, 32.0, double(kWindow)))) {}

  // Sends from one thread to another, numbered over all hosts. Calls `arrived` once all of it has
  // arrived.
  void send(uint32_t from, uint32_t to, double bytes, Network::Arrived arrived) {
    Way& one = way(from, to);
    const auto size = uint32_t(std::max(bytes, double(sizeof one.named)));
    one.sender.send(one.named, size);
    one.waiting.emplace(one.named++, std::move(arrived));
    pump(one);
  }

  // Datagrams, retransmissions included.
  uint64_t sent() const {
    uint64_t all = 0;
    for (const auto& [threads, one] : ways_) all += one->sender.sent();
    return all;
  }

  // Retransmissions.
  uint64_t again() const {
    uint64_t all = 0;
    for (const auto& [threads, one] : ways_) all += one->sender.again();
    return all;
  }

 private:
  static constexpr uint32_t kPayload = 1400, kHeader = 60;  // bytes; of a frame of Ethernet
  static constexpr uint32_t kWindow = 8192, kFirst = 0;     // datagrams
  static constexpr uint32_t kLargest = 1 << 26;             // bytes of a message
  static constexpr double kAcknowledgement = 100;           // bytes, with its headers
  static constexpr double kSoon = 50e-6;                    // seconds until an acknowledgement
  static constexpr double kUnderWay = 4e-3;                 // seconds of a link's rate, at most

  struct Way {  // from one thread to another
    Way(uint32_t from_thread, uint32_t to_thread)
        : from(from_thread),
          to(to_thread),
          sender(kFirst, kPayload, kWindow),
          receiver(kFirst, kPayload, kWindow, kLargest, true) {}
    const uint32_t from, to;
    DatagramSender sender;
    DatagramReceiver receiver;
    uint64_t named = 0;  // messages so far
    std::unordered_map<uint64_t, Network::Arrived> waiting;
    uint64_t wakes_at = 0;  // microseconds; 0: at no time
    bool is_to_acknowledge = false;
  };

  bool is_lost() { return chance_(random_) < loss_; }
  uint64_t microseconds() const { return uint64_t(network_.now() * 1e6 + 1e-3); }

  Way& way(uint32_t from, uint32_t to) {
    std::unique_ptr<Way>& found = ways_[{from, to}];
    if (!found) {
      found = std::make_unique<Way>(from, to);
      found->sender.set_limit(limit_);
    }
    return *found;
  }

  void pump(Way& one) {
    DatagramSender::Piece piece;
    while (one.sender.next(microseconds(), &piece)) {
      // The loss is after the sender's link, as in a full switch.
      const bool lost = is_lost();
      network_.send(one.from / threads_, one.to / threads_, piece.bytes + kHeader,
                    [this, &one, piece, lost] {
                      if (!lost) come(one, piece);
                    });
    }
    const auto wake = one.sender.wake_at();
    if (!wake || (one.wakes_at > microseconds() && one.wakes_at <= *wake)) return;
    one.wakes_at = std::max(*wake, microseconds() + 1);
    network_.at(double(one.wakes_at) * 1e-6, [this, &one, at = one.wakes_at] {
      if (one.wakes_at != at) return;
      one.wakes_at = 0;
      pump(one);
    });
  }

  // A message consists of its number, followed by zeros.
  void come(Way& one, const DatagramSender::Piece& piece) {
    std::vector<uint8_t> bytes(piece.bytes);
    if (piece.header.offset == 0)
      std::memcpy(bytes.data(), &piece.message, std::min(bytes.size(), sizeof piece.message));
    if (one.receiver.on_datagram(piece.header, bytes.data(), bytes.size()) ==
        DatagramReceiver::Taken::refused)
      throw Error("simulated: a datagram was refused");
    if (!std::exchange(one.is_to_acknowledge, true))
      network_.at(network_.now() + kSoon, [this, &one] { acknowledge(one); });
    std::vector<uint8_t> message;
    while (one.receiver.next_message(&message)) {
      uint64_t name = 0;
      std::memcpy(&name, message.data(), sizeof name);
      const auto found = one.waiting.find(name);
      if (found == one.waiting.end()) throw Error("simulated: a message has come twice");
      const Network::Arrived arrived = std::move(found->second);
      one.waiting.erase(found);
      arrived();
    }
  }

  void acknowledge(Way& one) {
    one.is_to_acknowledge = false;
    if (!one.receiver.owes()) return;
    Acknowledgement made = one.receiver.acknowledgement();
    const bool lost = is_lost();
    network_.send(one.to / threads_, one.from / threads_, kAcknowledgement,
                  [this, &one, lost, said = std::move(made)] {
                    if (lost) return;
                    std::vector<uint64_t> done;
                    if (!one.sender.on_acknowledgement(microseconds(), said, &done))
                      throw Error("simulated: an acknowledgement was refused");
                    pump(one);
                  });
  }

  Network& network_;
  const double loss_;
  const uint32_t threads_, limit_;
  // NOLINTNEXTLINE(bugprone-random-generator-seed): the same are lost each time
  std::mt19937_64 random_{0};
  std::uniform_real_distribution<double> chance_{0, 1};
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Way>> ways_;
};

}  // namespace omnihvd::simulation
