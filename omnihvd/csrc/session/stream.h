// An engine thread with its transport: runs the streams of all groups that are dealt to it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "session/group_stream.h"
#include "transport/transport.h"

namespace omnihvd {

class Stream : private Transport::Handler {
 public:
  Stream(std::unique_ptr<Transport> transport, uint32_t spin_us);
  // Leaves all groups, ends the thread, and gives the last messages a bounded time to go out.
  ~Stream() override;

  const std::string& address() const { return address_; }
  const std::string& description() const { return description_; }
  bool has_lost_a_peer() const { return has_lost_a_peer_; }  // any thread
  Transport& transport() { return *transport_; }             // engine thread only

  // Any thread: the command runs on the engine thread, soon and in order. The second form waits for
  // it, and throws what it throws.
  void post(std::function<void()> command);
  void run(std::function<void()> command);

  // Engine thread only.
  void add(std::shared_ptr<GroupStream> group);
  void remove(const std::shared_ptr<GroupStream>& group);  // leaves
  bool has_groups() const { return !groups_.empty(); }

 private:
  void loop();
  bool run_commands();
  void idle(Clock::time_point last_moved);
  void check_time();

  void on_message(const uint8_t* data, size_t size) override;
  void on_sent(uint64_t cookie) override { GroupStream::on_sent(cookie); }
  void on_peer_failed(PeerId peer, const std::string& reason) override;
  void refuse(const std::string& why);

  const std::unique_ptr<Transport> transport_;
  const std::string address_, description_;
  const Clock::duration spin_;
  std::vector<std::shared_ptr<GroupStream>> groups_;
  std::deque<uint64_t> left_;  // ids of the last groups that are gone
  Clock::time_point last_check_, last_refusal_;

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  std::atomic<bool> stop_{false}, has_lost_a_peer_{false};
  std::thread thread_;
};

}  // namespace omnihvd
