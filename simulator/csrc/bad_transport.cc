#include "simulator/csrc/bad_transport.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/rare.h"
#include "protocol/wire.h"

namespace omnihvd::simulation {
namespace {

BadTransport::Bytes gathered(const std::vector<Slice>& slices) {
  BadTransport::Bytes bytes;
  for (const Slice& slice : slices) {
    const auto* data = static_cast<const uint8_t*>(slice.data);
    bytes.insert(bytes.end(), data, data + slice.size);
  }
  return bytes;
}

}  // namespace

void BadTransport::push(Event event) {
  events_.push_back(std::move(event));
  wake_();
}

PeerId BadTransport::connect(const std::string& address) {
  ask_for_memory();
  const auto host = uint32_t(std::stoul(address));
  ++users_[host];
  if (ended_.count(host)) push({Event::Kind::ended, host, {}});
  return host;
}

void BadTransport::send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) {
  if (ended_.count(peer)) return push({Event::Kind::sent, cookie, {}});
  std::vector<Slice> all(slices, slices + count);
  Bytes bytes = gathered(all);
  // A worker's tensor may be overwritten once its sum has arrived, even before the worker knows
  // that its own message has.
  if (read_header(bytes.data(), bytes.size()).kind != Kind::result) all.clear();
  under_way_.emplace(named_, Outgoing{peer, cookie, false, std::move(all), bytes});
  network_.send(self_, peer, named_++, std::move(bytes));
}

void BadTransport::detach(uint64_t cookie) {
  for (auto& [name, out] : under_way_)
    if (out.cookie == cookie) out.detached = true;
  events_.erase(std::remove_if(events_.begin(), events_.end(),
                               [cookie](const Event& event) {
                                 return event.kind == Event::Kind::sent && event.number == cookie;
                               }),
                events_.end());
}

void BadTransport::came(const Bytes& message) { push({Event::Kind::came, 0, message}); }

void BadTransport::sent(uint64_t name) {
  const auto found = under_way_.find(name);
  if (found == under_way_.end()) return;
  const Outgoing out = std::move(found->second);
  under_way_.erase(found);
  if (out.detached) return;
  if (!out.slices.empty() && gathered(out.slices) != out.bytes)
    throw Error("memory was used again while its message was under way");
  push({Event::Kind::sent, out.cookie, {}});
}

void BadTransport::ended(uint32_t host) {
  if (!is_connected(host) || !ended_.insert(host).second) return;
  push({Event::Kind::ended, host, {}});
  for (auto at = under_way_.begin(); at != under_way_.end();) {
    const auto one = at++;
    if (one->second.to != host) continue;
    if (!one->second.detached) push({Event::Kind::sent, one->second.cookie, {}});
    under_way_.erase(one);
  }
}

bool BadTransport::progress() {
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

}  // namespace omnihvd::simulation
