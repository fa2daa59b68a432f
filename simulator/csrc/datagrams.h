// Messages over a simulated network that loses datagrams: each pair of engine threads has one of
// the protocol's own senders and receivers (innetwork/udp/datagram_sender.h) in each direction.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"
#include "simulator/csrc/network.h"

namespace omnihvd::simulation {

class Datagrams {
 public:
  // loss: the share of datagrams and acknowledgements that do not arrive; the seed selects them.
  // threads: the number of engine threads on each host.
  Datagrams(Network& network, const Costs& costs, double loss, uint64_t seed, uint32_t threads);
  ~Datagrams();

  // Sends from one thread to another, numbered over all hosts. Calls `arrived` once all of it has
  // arrived.
  void send(uint32_t from, uint32_t to, double bytes, Network::Arrived arrived);
  uint64_t sent() const;   // datagrams, retransmissions included
  uint64_t again() const;  // retransmissions

 private:
  struct Way;  // from one thread to another
  Way& way(uint32_t from, uint32_t to);
  void pump(Way& way);
  void come(Way& way, const DatagramSender::Piece& piece);
  void acknowledge(Way& way);
  bool is_lost() { return chance_(random_) < loss_; }
  uint64_t microseconds() const { return uint64_t(network_.now() * 1e6 + 1e-3); }

  Network& network_;
  const double loss_;
  const uint32_t threads_, limit_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> chance_{0, 1};
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Way>> ways_;
};

}  // namespace omnihvd::simulation
