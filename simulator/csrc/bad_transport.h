// A Transport over a bad network: it stands for UCX and UDP, for one simulating thread. A message
// is under way until its receiver has acknowledged all of it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "simulator/csrc/bad_network.h"
#include "transport/transport.h"

namespace omnihvd::simulation {

class BadTransport : public Transport {
 public:
  using Bytes = BadNetwork::Bytes;

  // self: its host in the network. wake: called when progress() has something to do.
  BadTransport(BadNetwork& network, uint32_t self, std::function<void()> wake)
      : network_(network), self_(self), wake_(std::move(wake)) {}

  // Called by the network.
  void came(const Bytes& message);
  void sent(uint64_t name);
  void ended(uint32_t host);  // peers notice that the host has ended

  bool is_connected(uint32_t host) const { return users_.count(host) > 0; }

  void set_handler(Handler* handler) override { handler_ = handler; }
  std::string address() const override { return std::to_string(self_); }
  PeerId connect(const std::string& address) override;
  void disconnect(PeerId peer) override { --users_.at(peer); }
  void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) override;
  void detach(uint64_t cookie) override;
  bool progress() override;
  void wait(int) override {}
  void wake() override { wake_(); }
  bool is_local(const std::string&) const override { return false; }
  std::string describe() const override { return "simulated"; }

 private:
  struct Outgoing {
    uint32_t to;
    uint64_t cookie;
    bool detached;
    std::vector<Slice> slices;  // of results, which do not change until they have arrived
    Bytes bytes;
  };
  struct Event {
    enum class Kind { came, sent, ended } kind;
    uint64_t number;  // a cookie, or a host
    Bytes message;
  };
  void push(Event event);

  BadNetwork& network_;
  const uint32_t self_;
  const std::function<void()> wake_;
  Handler* handler_ = nullptr;
  std::map<uint32_t, uint32_t> users_;  // by host, for all that were ever connected
  std::set<uint32_t> ended_;            // of them
  std::map<uint64_t, Outgoing> under_way_;
  std::deque<Event> events_;
  uint64_t named_ = 0;
};

}  // namespace omnihvd::simulation
