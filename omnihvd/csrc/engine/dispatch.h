// The groups of a progress thread: hands each group its messages, lets it work, and checks the
// clock for it. Has no thread and no I/O of its own.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/group_stream.h"
#include "transport/transport.h"

namespace omnihvd {

class Dispatch : public Transport::Handler {
 public:
  // Creates this thread's part of a group. Throws Error, and then leaves nothing behind.
  std::shared_ptr<GroupStream> join(std::shared_ptr<const GroupInfo> info, uint32_t self,
                                    uint32_t stream, Transport& transport,
                                    GroupStream::Failed failed);
  void remove(const std::shared_ptr<GroupStream>& group);  // leaves
  void remove_all() {
    while (!groups_.empty()) remove(std::shared_ptr<GroupStream>(groups_.back()));
  }
  bool has_groups() const { return !groups_.empty(); }
  bool busy() const;
  bool has_lost_a_peer() const { return has_lost_a_peer_; }  // any thread
  // Fails all groups. New ones get another thread and transport, as after the loss of a peer.
  void fail_all(const std::string& why) noexcept {
    has_lost_a_peer_ = true;
    for (const auto& group : groups_) group->fail(why, true);
  }

  // Does a bounded amount of the work that is due; true if there was any.
  bool work();
  // Ends what exceeds its time-out, and warns of stalls. Call about twice a second while busy(). If
  // a call is seconds late, this process was stopped, and that time does not count as waiting.
  void check_time();

  void on_message(const uint8_t* data, size_t size) override;
  void on_sent(uint64_t cookie) override { GroupStream::on_sent(cookie); }
  void on_peer_failed(PeerId peer, const std::string& reason) override {
    has_lost_a_peer_ = true;
    for (const auto& group : groups_) group->on_peer_failed(peer, reason);  // groups share the peer
  }

 private:
  void refuse(const std::string& why);
  void remember(uint64_t left);

  std::vector<std::shared_ptr<GroupStream>> groups_;
  std::deque<uint64_t> left_;  // ids of the last groups that ended, or failed to form
  Clock::time_point last_refusal_, checked_at_;
  std::atomic<bool> has_lost_a_peer_{false};
};

}  // namespace omnihvd
