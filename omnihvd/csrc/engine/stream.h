// A progress thread with its transport: runs the parts of all groups that it carries.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/dispatch.h"
#include "engine/polling.h"
#include "transport/transport.h"

namespace omnihvd {

class Stream {
 public:
  Stream(std::unique_ptr<Transport> transport, uint32_t spin_us);
  // Leaves all groups, ends the thread, and gives the last messages a bounded time to go out.
  ~Stream();

  const std::string& address() const { return address_; }
  const std::string& description() const { return description_; }
  bool has_lost_a_peer() const { return groups_.has_lost_a_peer(); }  // any thread
  Transport& transport() { return *transport_; }                      // progress thread only
  Dispatch& groups() { return groups_; }                              // progress thread only

  // Any thread: runs the command on the progress thread, soon and in order. The second form waits
  // for it, and throws what it throws.
  void post(std::function<void()> command);
  void run(std::function<void()> command);

 private:
  void loop();
  template <typename Step>
  bool guarded(Step step);
  bool end_turn(bool moved);
  bool run_commands();

  Dispatch groups_;
  const std::unique_ptr<Transport> transport_;  // calls groups_ until it is destroyed
  const std::string address_, description_;
  Polling polling_;
  Clock::time_point last_check_, last_failure_;

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace omnihvd
