// Notices that a process of this host has ended, whoever started it and however it ended.
//
// A pidfd tells at once, also for a process that its parent has not yet waited for; a shared memory
// transport alone would not tell at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/file_descriptor.h"

namespace omnihvd {

struct ProcessId {
  std::string host;  // the boot and the namespace in which `pid` has a meaning
  uint32_t pid = 0;
  uint64_t start = 0;  // tells a process from a later one with the same pid
};

ProcessId this_process();  // throws Error

class ProcessWatch {
 public:
  ProcessWatch();

  int fd() const { return epoll_; }  // readable while a watched process has ended

  // False: it has ended already. Processes of other hosts are not watched; neither is any where the
  // kernel has no pidfd (before 5.3). Throws Error when this process has no descriptors left.
  bool add(uint32_t key, const ProcessId& process);
  void remove(uint32_t key);
  // Its end would be noticed: it lives, whatever it does not say.
  bool watches(uint32_t key) const { return pidfds_.count(key) > 0; }
  // The keys of processes that have ended, told once, and not at once: what they sent before may
  // still be on its way. idle: nothing has come now. Looks now and then.
  std::vector<uint32_t> ended(bool idle);
  void look_now() { next_look_ = {}; }  // at the next ended()
  // How long to wait at the most before the next ended(), of so many milliseconds (< 0: no limit).
  int limit(int timeout_ms) const;

 private:
  using Clock = std::chrono::steady_clock;

  FileDescriptor epoll_;
  std::string host_;
  std::map<uint32_t, FileDescriptor> pidfds_;
  std::map<uint32_t, Clock::time_point> noticed_;  // but not told
  Clock::time_point next_look_{};
};

}  // namespace omnihvd
