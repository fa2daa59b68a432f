#include "engine/group_stream.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/group_tasks.h"
#include "engine/stats.h"
#include "engine/trace.h"

namespace omnihvd {
namespace {

// A message that was merely overtaken arrives far sooner than this.
constexpr auto kGapLimit = std::chrono::seconds(2);
// How long a dedicated aggregator keeps a failure that nobody has asked for.
constexpr auto kMostUntold = std::chrono::minutes(10);

}  // namespace

GroupStream::GroupStream(std::shared_ptr<const GroupInfo> info, uint32_t self, uint32_t stream,
                         Transport& transport, Failed failed)
    : info_(std::move(info)),
      self_(self),
      stream_(stream),
      transport_(transport),
      failed_(std::move(failed)),
      peers_(info_->nodes.size()),
      router_(*this, *info_->seats, self, stream, info_->settings.streams,
              info_->settings.deterministic),
      outgoing_(info_->nodes.size()),
      timeout_s_(info_->settings.timeout_s) {
  if (!info_->has_levels() && !info_->dedicated()) home_share_ = self;
  try {
    for (const uint32_t node : info_->seats->peers(self)) {
      const bool both_workers = node < info_->workers && self < info_->workers;
      Peer& peer = peers_[node];
      const std::string& address = info_->address(node, stream);
      // Dedicated aggregators and we learned of each other over the network, so a claim to be on
      // our host is not trusted.
      const bool inside = both_workers && transport_.is_local(address);
      const Protection asked =
          info_->settings.encrypt && !inside ? Protection::encrypted : Protection::token;
      peer.in = std::make_unique<Seal>(*info_, stream, node, self, asked);
      peer.out = std::make_unique<Seal>(*info_, stream, self, node, asked);
      peer.id = transport_.connect(address);
      peer.connected = true;
    }
  } catch (...) {
    disconnect_all();
    throw;
  }
}

GroupStream::~GroupStream() = default;

void GroupStream::start(std::shared_ptr<Collective> collective) {
  bool started = false;
  try {
    std::shared_ptr<WorkerTask> task;
    if (left_) fail("this rank has left the group", false);
    if (!failure_)
      task = std::make_shared<WorkerTask>(router_, collective, info_->settings.scan_ahead,
                                          home_share_);
    // A peer that had nothing to do here may have seen the collective's end and left already.
    for (uint32_t node = 0; node < peers_.size() && !failure_; ++node)
      if (peers_[node].left && !task->worker.done())
        fail(info_->name_of(node) + " has left the job", true);
    if (!failure_) started = router_.add(task);
  } catch (const std::exception& why) {
    fail(words_of(why), true);
  }
  if (!started) collective->stream_done(&*failure_, 0, 0);
}

bool GroupStream::work() {
  bool worked = false;
  try {
    worked = router_.work();
    for (auto at = router_.workers().begin(); !failure_ && at != router_.workers().end();) {
      const std::shared_ptr<Router::WorkerPart> part = (at++)->second;  // may be erased meanwhile
      if (part->started) continue;
      worked = true;
      const Clock::time_point begin = tracing() ? Clock::now() : Clock::time_point();
      router_.start_slots(*part);
      if (tracing()) trace({"inspect", begin, Clock::now(), {{{"collective", part->sequence}}}});
      finish_if_done(task_of(*part));
    }
  } catch (const std::exception& why) {
    fail(words_of(why), true);
  }
  flush_all();
  return worked;
}

void GroupStream::on_message(const Header& header, const uint8_t* data, size_t size) {
  const uint32_t sender = header.from;  // as it claims
  if ((header.kind == Kind::contribution && sender >= info_->workers) || sender >= peers_.size() ||
      !peers_[sender].connected)
    throw Error("a sender that is not a member of the group");
  const uint8_t* plain = peers_[sender].in->open(header, data, size, &plain_);
  if (!plain)
    throw Error("it claims to be from " + info_->name_of(sender) +
                ", but is forged, damaged, a repeat, or out of order");
  // The sender knows that all listen. If it fails or leaves before, it tells dedicated aggregators
  // at once.
  if (header.sequence > 0) all_listen();
  if (failure_ || left_) return;  // was in flight when we stopped
  stats().bytes_received += size;
  try {
    MessageReader reader(plain, size);
    switch (header.kind) {
      case Kind::contribution:
        on_contribution(reader);
        // Ranks look for who has left when they start a sum. A dedicated aggregator starts none.
        for (uint32_t node = 0; self_ >= info_->workers && node < info_->workers; ++node)
          if (peers_[node].left) on_leave(node);
        break;
      case Kind::result: on_result(reader); break;
      // Told on, since its sender may have lost only the connection to a rank that lives.
      case Kind::abort: fail(reader.text(), true); break;
      case Kind::leave: on_leave(sender); break;
    }
  } catch (const std::bad_alloc& why) {
    fail(words_of(why), true);
  } catch (const std::exception& why) {
    fail("message from " + info_->name_of(sender) + ": " + why.what(), true);
  }
}

// The message for an exception that was thrown here.
std::string GroupStream::words_of(const std::exception& why) const {
  if (!dynamic_cast<const std::bad_alloc*>(&why)) return why.what();
  return "no memory is left on " + info_->name_of(self_) +
         " for an allreduce: leave it more, or ask for less by OMNIHVD_SLOTS and "
         "OMNIHVD_MESSAGE_BYTES";
}

void GroupStream::finish_if_done(WorkerTask& task) {
  if (!task.done() || task.unsent > 0) return;
  const auto found = router_.workers().find(task.sequence);
  if (found == router_.workers().end()) return;
  const std::shared_ptr<Router::WorkerPart> last = found->second;
  router_.forget(task.sequence);
  task_of(*last).report(nullptr);
}

void GroupStream::fail(const std::string& reason, bool tell) {
  if (failure_) return;
  failure_ = reason;
  const auto attempt = [](auto step) {
    try {
      step();
    } catch (const std::exception& why) {  // out of memory, or a broken transport
      log(LogLevel::warning, "not all ranks can be told that a group has failed: ", why.what());
    }
  };
  attempt([&] { detach_all(); });
  if (tell) attempt([&] { say(Kind::abort, reason); });
  is_to_tell_ = tell;
  failed_at_ = Clock::now();
  for (const auto& [sequence, part] : router_.stop()) task_of(*part).report(&*failure_);
  failed_(reason);
}

// Now tells the peers that had not joined yet when this group failed.
void GroupStream::all_listen() {
  if (std::exchange(all_listen_, true) || left_) return;
  if (failure_ && is_to_tell_) say(Kind::abort, *failure_);
}

void GroupStream::on_peer_failed(PeerId id, const std::string& reason) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    const Peer& peer = peers_[node];
    if (peer.connected && peer.id == id && !peer.left)
      fail(
          info_->name_of(self_) + " lost the connection to " + info_->name_of(node) + ": " + reason,
          true);
  }
}

void GroupStream::check_gaps(Clock::time_point now) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    if (!peers_[node].connected) continue;
    const auto since = peers_[node].in->gap_since();
    if (since && now - *since > kGapLimit)
      return fail("messages of " + info_->name_of(node) + " were lost or damaged on their way",
                  true);
  }
}

bool GroupStream::deserted() const {
  const bool told = all_listen_ || !is_to_tell_ || Clock::now() - failed_at_ > kMostUntold;
  return self_ >= info_->workers &&
         ((failure_ && told) || std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
            return !peer.connected || peer.left;
          }));
}

void GroupStream::leave() {
  if (left_) return;
  // If they wait for results, the others must see a failure, not a departure.
  if (!router_.workers().empty())
    fail(info_->name_of(self_) + " left in the middle of an allreduce", true);
  if (!failure_) say(Kind::leave, "");
  detach_all();
  left_ = true;
  disconnect_all();
}

}  // namespace omnihvd
