// Detects that a process of this host has ended, whoever started it and however it ended.
//
// A pidfd reports this at once, even before the parent waits for the process. A shared memory
// transport alone would never report it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/file_descriptor.h"

namespace omnihvd {

struct ProcessId {
  std::string host;  // the boot and the PID namespace in which `pid` is valid
  uint32_t pid = 0;
  uint64_t start = 0;  // distinguishes later processes with the same pid
};

ProcessId this_process();                         // throws Error
std::string name_space(const std::string& kind);  // of this process: "pid", "net"

class ProcessWatch {
 public:
  ProcessWatch();

  int fd() const { return epoll_; }  // readable while a watched process has ended

  // Returns false if the process has already ended. Processes of other hosts are not watched, nor
  // those that /proc hides, nor any if the kernel has no pidfd (before 5.3). Throws Error if this
  // process has no descriptors left.
  bool add(uint32_t key, const ProcessId& process);
  void remove(uint32_t key);
  // Whether the process is watched. Then it is alive, however silent it is.
  bool watches(uint32_t key) const { return pidfds_.count(key) > 0; }
  // The keys of processes that have ended. Each is reported once, after a delay, because messages
  // from before its end may still be under way. idle: nothing has come now. Looks only now and
  // then.
  std::vector<uint32_t> ended(bool idle);
  void look_now() { next_look_ = {}; }  // at the next ended()
  // The longest wait before the next ended(), at most so many milliseconds (< 0: no limit).
  int limit(int timeout_ms) const;

 private:
  using Clock = std::chrono::steady_clock;

  FileDescriptor epoll_;
  std::string host_;
  std::map<uint32_t, FileDescriptor> pidfds_;
  std::map<uint32_t, Clock::time_point> noticed_;  // but not yet reported
  Clock::time_point next_look_{};
};

}  // namespace omnihvd
