// A Transport over a bad network: it stands for UCX and UDP, for one simulating thread. A message
// is under way until its receiver has acknowledged all of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rare.h"
#include "protocol/wire.h"
#include "simulator/csrc/bad_network.h"
#include "transport/transport.h"

namespace omnihvd::simulation {

class BadTransport : public Transport {
 public:
  using Bytes = BadNetwork::Bytes;

  // self: its host in the network. wake: called when progress() has something to do.
  BadTransport(BadNetwork& network, uint32_t self, std::function<void()> wake)
      : network_(network), self_(self), wake_(std::move(wake)) {}

  // The next three are called by the network.
  void came(const Bytes& message) { push({Event::Kind::came, 0, message}); }

  void sent(uint64_t name) {
    const auto found = under_way_.find(name);
    if (found == under_way_.end()) return;
    const Outgoing out = std::move(found->second);
    under_way_.erase(found);
    if (out.detached) return;
    if (!out.slices.empty() && gathered(out.slices) != out.bytes)
      throw Error("memory was used again while its message was under way");
    push({Event::Kind::sent, out.cookie, {}});
  }

  void ended(uint32_t host) {  // peers notice that the host has ended
    if (users_.count(host) == 0 || !ended_.insert(host).second) return;
    push({Event::Kind::ended, host, {}});
    for (auto at = under_way_.begin(); at != under_way_.end();) {
      const auto one = at++;
      if (one->second.to != host) continue;
      if (!one->second.detached) push({Event::Kind::sent, one->second.cookie, {}});
      under_way_.erase(one);
    }
  }

  void set_handler(Handler* handler) override { handler_ = handler; }
  std::string address() const override { return std::to_string(self_); }
  void disconnect(PeerId peer) override { --users_.at(peer); }
  void wait(int) override {}
  void wake() override { wake_(); }
  bool is_local(const std::string&) const override { return false; }
  std::string describe() const override { return "simulated"; }

  PeerId connect(const std::string& address) override {
    ask_for_memory();
    const auto host = uint32_t(std::stoul(address));
    ++users_[host];
    if (ended_.count(host)) push({Event::Kind::ended, host, {}});
    return host;
  }

  void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) override {
    if (ended_.count(peer)) return push({Event::Kind::sent, cookie, {}});
    std::vector<Slice> all(slices, slices + count);
    Bytes bytes = gathered(all);
    // A worker's tensor may be overwritten once its sum has arrived, even before the worker knows
    // that its own message has.
    if (read_header(bytes.data(), bytes.size()).kind != Kind::result) all.clear();
    under_way_.emplace(named_, Outgoing{peer, cookie, false, std::move(all), bytes});
    network_.send(self_, peer, named_++, std::move(bytes));
  }

  void detach(uint64_t cookie) override {
    for (auto& [name, out] : under_way_)
      if (out.cookie == cookie) out.detached = true;
    events_.erase(std::remove_if(events_.begin(), events_.end(),
                                 [cookie](const Event& event) {
                                   return event.kind == Event::Kind::sent && event.number == cookie;
                                 }),
                  events_.end());
  }

  bool progress() override {
    const bool any = !events_.empty();
    for (size_t n = events_.size(); n > 0 && !events_.empty(); --n) {
      const Event event = std::move(events_.front());
      events_.pop_front();
      switch (event.kind) {
        case Event::Kind::came: {
          // Memory of exactly its size lets a sanitizer see reads beyond it.
          const std::unique_ptr<uint8_t[]> copy(new uint8_t[event.message.size()]);
          std::memcpy(copy.get(), event.message.data(), event.message.size());
          handler_->on_message(copy.get(), event.message.size());
          break;
        }
        case Event::Kind::sent: handler_->on_sent(event.number); break;
        case Event::Kind::ended:
          if (users_.at(uint32_t(event.number)) > 0)
            handler_->on_peer_failed(PeerId(event.number), "its process has ended");
          break;
      }
    }
    return any;
  }

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

  static Bytes gathered(const std::vector<Slice>& slices) {
    Bytes bytes;
    for (const Slice& slice : slices) {
      const auto* data = static_cast<const uint8_t*>(slice.data);
      bytes.insert(bytes.end(), data, data + slice.size);
    }
    return bytes;
  }

  void push(Event event) {
    events_.push_back(std::move(event));
    wake_();
  }

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
