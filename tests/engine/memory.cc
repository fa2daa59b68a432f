// Transports within one process: each has a mailbox, and all others may put messages into it.
#include "memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr char kPrefix[] = "omnihvd memory ";

struct Message {
  std::unique_ptr<uint64_t[]> words;  // words, for the alignment
  size_t size;
};

// The state that a transport and its peers share. The lock of a mailbox is never held with another
// lock.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable event;
  std::deque<Message> messages;
  std::vector<std::weak_ptr<Mailbox>> watchers;  // are told of its death
  bool dead = false;
  bool death_seen = false;  // a transport that this one watches is dead
  bool woken = false;

  bool is_dead() {
    const std::lock_guard<std::mutex> lock(mutex);
    return dead;
  }
};

class Registry {
 public:
  std::string add(const std::shared_ptr<Mailbox>& mailbox) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string address = kPrefix + std::to_string(next_++);
    mailboxes_[address] = mailbox;
    return address;
  }
  void remove(const std::string& address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    mailboxes_.erase(address);
  }
  std::shared_ptr<Mailbox> find(const std::string& address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = mailboxes_.find(address);
    return found == mailboxes_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  uint64_t next_ = 0;
  std::map<std::string, std::shared_ptr<Mailbox>> mailboxes_;
};

Registry& registry() {
  static Registry* instance = new Registry;  // outlives every transport
  return *instance;
}

class MemoryTransport final : public Transport {
 public:
  ~MemoryTransport() override { die(); }

  void set_handler(Handler* handler) override { handler_ = handler; }
  std::string address() const override { return address_; }
  PeerId connect(const std::string& address) override;
  void disconnect(PeerId peer) override { --peers_.at(peer).users; }
  void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) override;
  void detach(uint64_t cookie) override;
  bool progress() override;
  void wait(int timeout_ms) override;
  void wake() override;
  // Tests must see all messages, as between hosts.
  bool is_local(const std::string&) const override { return false; }
  std::string describe() const override { return "memory of this process (for tests)"; }

  void die();

 private:
  struct Peer {
    std::shared_ptr<Mailbox> mailbox;
    uint32_t users = 1;
    bool failed = false;
  };

  Handler* handler_ = nullptr;
  const std::shared_ptr<Mailbox> own_ = std::make_shared<Mailbox>();
  const std::string address_ = registry().add(own_);
  std::vector<Peer> peers_;
  std::deque<uint64_t> sent_;
};

PeerId MemoryTransport::connect(const std::string& address) {
  if (address.compare(0, sizeof kPrefix - 1, kPrefix) != 0) {
    throw Error("not the address of a memory transport");
  }
  auto mailbox = registry().find(address);
  if (!mailbox) {  // the transport is gone
    mailbox = std::make_shared<Mailbox>();
    mailbox->dead = true;
  }
  for (PeerId id = 0; id < peers_.size(); ++id) {
    if (peers_[id].mailbox != mailbox || peers_[id].failed) continue;
    ++peers_[id].users;
    return id;
  }
  bool dead;
  {
    const std::lock_guard<std::mutex> lock(mailbox->mutex);
    mailbox->watchers.push_back(own_);
    dead = mailbox->dead;
  }
  if (dead) {
    const std::lock_guard<std::mutex> lock(own_->mutex);
    own_->death_seen = true;
  }
  peers_.push_back({std::move(mailbox)});
  return static_cast<PeerId>(peers_.size() - 1);
}

void MemoryTransport::send(PeerId id, const Slice* slices, size_t count, uint64_t cookie) {
  const Peer& peer = peers_.at(id);
  sent_.push_back(cookie);
  if (peer.failed || own_->is_dead()) return;
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += slices[i].size;
  Message message{std::make_unique<uint64_t[]>(size / sizeof(uint64_t) + 1), size};
  char* at = reinterpret_cast<char*>(message.words.get());
  for (size_t i = 0; i < count; ++i) {
    if (slices[i].size > 0) std::memcpy(at, slices[i].data, slices[i].size);
    at += slices[i].size;
  }
  const std::lock_guard<std::mutex> lock(peer.mailbox->mutex);
  if (peer.mailbox->dead) return;
  peer.mailbox->messages.push_back(std::move(message));
  peer.mailbox->event.notify_one();
}

// send() has copied the data, so only the report to the caller must be cancelled.
void MemoryTransport::detach(uint64_t cookie) {
  const auto found = std::find(sent_.begin(), sent_.end(), cookie);
  if (found != sent_.end()) sent_.erase(found);
}

std::atomic<int> faults{0}, losses{0};

bool MemoryTransport::progress() {
  for (int left = faults; left > 0;)
    if (faults.compare_exchange_weak(left, left - 1))
      throw std::runtime_error("as the test wanted");
  std::deque<Message> messages;
  bool look;
  {
    const std::lock_guard<std::mutex> lock(own_->mutex);
    if (own_->dead) return false;
    look = std::exchange(own_->death_seen, false);
  }
  std::vector<PeerId> failures;
  for (PeerId id = 0; look && id < peers_.size(); ++id) {
    if (!peers_[id].failed && peers_[id].mailbox->is_dead()) failures.push_back(id);
  }
  for (PeerId id = 0; id < peers_.size() && losses > 0; ++id) {
    if (peers_[id].failed || peers_[id].mailbox == own_ || losses.fetch_sub(1) <= 0) continue;
    failures.push_back(id);
  }
  {
    // This comes after the look for deaths, so the last messages of the dead are among these.
    const std::lock_guard<std::mutex> lock(own_->mutex);
    messages.swap(own_->messages);
  }
  const bool any = !messages.empty() || !failures.empty() || !sent_.empty();
  for (const Message& message : messages) {
    handler_->on_message(reinterpret_cast<const uint8_t*>(message.words.get()), message.size);
  }
  for (const PeerId id : failures) {
    peers_[id].failed = true;
    if (peers_[id].users > 0)
      handler_->on_peer_failed(id, peers_[id].mailbox->is_dead()
                                       ? "the transport in memory was destroyed"
                                       : "as the test wanted");
  }
  for (size_t count = sent_.size(); count > 0 && !sent_.empty(); --count) {
    const uint64_t cookie = sent_.front();
    sent_.pop_front();
    handler_->on_sent(cookie);
  }
  return any;
}

void MemoryTransport::wait(int timeout_ms) {
  std::unique_lock<std::mutex> lock(own_->mutex);
  const auto ready = [this] {
    return own_->woken ||
           (!own_->dead && (own_->death_seen || !own_->messages.empty() || !sent_.empty()));
  };
  if (timeout_ms < 0) {
    own_->event.wait(lock, ready);
  } else {
    own_->event.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready);
  }
  own_->woken = false;
}

void MemoryTransport::wake() {
  const std::lock_guard<std::mutex> lock(own_->mutex);
  own_->woken = true;
  own_->event.notify_one();
}

void MemoryTransport::die() {
  registry().remove(address_);
  std::vector<std::weak_ptr<Mailbox>> watchers;
  {
    const std::lock_guard<std::mutex> lock(own_->mutex);
    own_->dead = true;
    own_->messages.clear();
    watchers.swap(own_->watchers);
  }
  for (const auto& watcher : watchers) {
    const std::shared_ptr<Mailbox> mailbox = watcher.lock();
    if (!mailbox) continue;
    const std::lock_guard<std::mutex> lock(mailbox->mutex);
    mailbox->death_seen = true;
    mailbox->event.notify_one();
  }
}

}  // namespace

std::unique_ptr<Transport> make_memory_transport() { return std::make_unique<MemoryTransport>(); }

void kill_memory_transport(Transport& transport) {
  auto* const memory = dynamic_cast<MemoryTransport*>(&transport);
  OMNIHVD_INVARIANT(memory);
  memory->die();
}

void throw_in_memory_transports(int times) { faults = times; }

void lose_in_memory_transports(int times) { losses = times; }

}  // namespace omnihvd
