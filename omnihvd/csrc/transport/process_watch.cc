#include "transport/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <utility>

namespace omnihvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{100};
// The end of a process is reported once no message has come for the first, and after the second at
// the latest.
constexpr milliseconds kLastWords{50};
constexpr milliseconds kLastWordsLimit{2000};

int open_pidfd(uint32_t pid) {
#ifdef SYS_pidfd_open
  constexpr long call = SYS_pidfd_open;
#else
  constexpr long call = 434;  // the same on every architecture
#endif
  return static_cast<int>(syscall(call, static_cast<pid_t>(pid), 0));  // is close-on-exec
}

// The file's first bytes; "" if there is no such file. Throws Error if this process can open no
// more files, which says nothing about the file.
std::string first_bytes(const std::string& path) {
  const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0 && !none_left(errno)) return "";
  const FileDescriptor file(opened, "open");
  char bytes[1024];
  const ssize_t length = read(file, bytes, sizeof bytes);
  return std::string(bytes, length > 0 ? length : 0);
}

// The start time in clock ticks since boot; 0: no such process, or none that this one may see.
uint64_t start_time(uint32_t pid) {
  const std::string text = first_bytes("/proc/" + std::to_string(pid) + "/stat");
  // The second field, the program's name in parentheses, may contain anything. The time is field
  // 22.
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(after_name + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

std::string this_host() {
  const std::string boot = first_bytes("/proc/sys/kernel/random/boot_id");
  return boot + " " + name_space("pid");
}

}  // namespace

std::string name_space(const std::string& kind) {
  char name[64];
  const ssize_t length = readlink(("/proc/self/ns/" + kind).c_str(), name, sizeof name);
  return std::string(name, length > 0 ? length : 0);
}

ProcessId this_process() {
  const uint32_t pid = static_cast<uint32_t>(getpid());
  return {this_host(), pid, start_time(pid)};
}

ProcessWatch::ProcessWatch()
    : epoll_(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"), host_(this_host()) {}

bool ProcessWatch::add(uint32_t key, const ProcessId& process) {
  if (process.host != host_ || process.start == 0) return true;
  const int opened = open_pidfd(process.pid);
  if (opened < 0 && !none_left(errno)) return errno != ESRCH;
  FileDescriptor pidfd(opened, "pidfd_open");
  // Checked after the pidfd is open, so that the answer is about the pidfd's process.
  const uint64_t start = start_time(process.pid);
  if (start == 0) {  // /proc may hide the processes of other users (hidepid)
    pollfd ended{pidfd, POLLIN, 0};
    return poll(&ended, 1, 0) == 0;
  }
  if (start != process.start) return false;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = key;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, pidfd, &event) != 0) return true;
  pidfds_.emplace(key, std::move(pidfd));
  return true;
}

// A closed pidfd leaves the epoll set, unless a fork has copied it: so delete it explicitly.
void ProcessWatch::remove(uint32_t key) {
  noticed_.erase(key);
  const auto found = pidfds_.find(key);
  if (found == pidfds_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, found->second, nullptr);
  pidfds_.erase(found);
}

std::vector<uint32_t> ProcessWatch::ended(bool idle) {
  const Clock::time_point now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + kLookEvery;
    epoll_event events[16];
    for (int count; (count = epoll_wait(epoll_, events, 16, 0)) > 0;)
      for (int i = 0; i < count; ++i) {
        remove(events[i].data.u32);
        noticed_[events[i].data.u32] = now;
      }
  }
  std::vector<uint32_t> keys;
  for (auto at = noticed_.begin(); at != noticed_.end();) {
    const bool over = now - at->second >= (idle ? kLastWords : kLastWordsLimit);
    if (over) keys.push_back(at->first);
    at = over ? noticed_.erase(at) : std::next(at);
  }
  return keys;
}

int ProcessWatch::limit(int timeout_ms) const {
  const int most = int(kLastWords.count());
  return noticed_.empty() ? timeout_ms : timeout_ms < 0 ? most : std::min(timeout_ms, most);
}

}  // namespace omnihvd
