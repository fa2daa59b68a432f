#include "transport/ucx/ucx_system.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/awake_clock.h"
#include "base/error.h"
#include "base/log.h"
#include "intercept/got_hook.h"
#include "transport/file_descriptor.h"

// A function of libucs since 1.10; no installed header declares it.
extern "C" unsigned long ucs_sys_get_proc_create_time(pid_t pid);

namespace omnihvd {
namespace {

constexpr useconds_t kNap_us = 1000;

// The sockets that UCX has opened: their inodes, by descriptor. A descriptor may belong to another
// file by now.
std::mutex mutex;  // guards sockets(); held during a fork
std::vector<ino_t>& sockets() {
  static auto& all = *new std::vector<ino_t>;
  return all;
}

int noted(int socket) {
  struct stat file{};
  if (socket < 0 || fstat(socket, &file) != 0) return socket;
  const std::lock_guard<std::mutex> lock(mutex);
  if (sockets().size() <= size_t(socket)) sockets().resize(size_t(socket) + 1);
  sockets()[size_t(socket)] = file.st_ino;
  return socket;
}

// Whether the descriptor still is the socket that was noted. Async-signal-safe.
bool is_noted(size_t fd) {
  struct stat file{};
  return sockets()[fd] != 0 && fstat(int(fd), &file) == 0 && S_ISSOCK(file.st_mode) &&
         file.st_ino == sockets()[fd];
}

// Runs in a forked child. Async-signal-safe: other threads of the parent may have held any lock but
// ours.
void close_sockets() {
  for (size_t fd = 0; fd < sockets().size(); ++fd) {
    if (is_noted(fd)) close(int(fd));
    sockets()[fd] = 0;
  }
}

std::atomic<int> reserve{-1};

// Calls `open`. If no descriptors are left, frees the one in reserve and calls it again.
template <typename Open>
int with_reserve(Open open) {
  int fd = open();
  if (fd < 0 && none_left(errno) && reserve >= 0) {
    if (const int spare = reserve.exchange(-1); spare >= 0) close(spare);
    return open();
  }
  const int error = errno;
  if (reserve < 0) {
    const int spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    int none = -1;
    if (spare >= 0 && !reserve.compare_exchange_strong(none, spare)) close(spare);
  }
  errno = error;
  return fd;
}

int open_socket(int domain, int type, int protocol) {
  return noted(with_reserve([=] { return socket(domain, type | SOCK_CLOEXEC, protocol); }));
}

int accept_peer(int listener, sockaddr* address, socklen_t* length) {
  const int fd = noted(with_reserve(
      [=] { return accept4(listener, address, length, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
  if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != EBADF && errno != EINVAL) {
    if (none_left(errno)) usleep(kNap_us);  // UCX retries at once: the peer still waits
    errno = EAGAIN;
  }
  return fd;
}

int open_file_of_ucx(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = mode_t(flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, int) : 0);
  va_end(arguments);
  return with_reserve([=] { return open(path, flags | O_CLOEXEC, mode); });
}

// UCX removes a segment's name at once, since peers open it by /proc. A process that is killed
// before would leave name and memory behind, so a segment gets none.
int open_shared_memory(const char* name, int flags, mode_t mode) {
  if (flags & O_CREAT && !std::getenv("UCX_POSIX_USE_PROC_LINK")) {
    const int nameless = O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC;
    const int fd = with_reserve([=] { return open("/dev/shm", nameless, mode); });
    if (fd >= 0) return fd;
  }
  return with_reserve([=] { return shm_open(name, flags, mode); });
}

int remove_shared_memory(const char* name) {
  return shm_unlink(name) == 0 || errno == ENOENT ? 0 : -1;
}

// UCX's keep-alive asks when a process of this host began; 0: it has ended.
unsigned long begin_of(pid_t pid) {
  static std::mutex guard;
  static auto& known = *new std::map<pid_t, unsigned long>;
  const unsigned long ticks = ucs_sys_get_proc_create_time(pid);
  const std::lock_guard<std::mutex> lock(guard);
  if (ticks != 0) return known[pid] = ticks;
  const bool ended = kill(pid, 0) != 0 && errno == ESRCH;
  const auto before = known.find(pid);
  return ended || before == known.end() ? 0 : before->second;
}

constexpr uint64_t kBetweenLooks_us = 2'000'000;  // of this process's awake time
constexpr int kUnanswered = 3;                    // times that TCP has asked

int option(int socket, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(socket, IPPROTO_TCP, name, &value, &size) == 0 ? value : 0;
}

bool is_silent(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  if (info.tcpi_retransmits < kUnanswered && info.tcpi_probes < kUnanswered) return false;
  const int limit_s =
      option(socket, TCP_KEEPIDLE) + option(socket, TCP_KEEPINTVL) * option(socket, TCP_KEEPCNT);
  return info.tcpi_last_ack_recv >= uint32_t(limit_s) * 1000;
}

void hook(const char* library, const char* function, void* ours) {
  if (install_hook(library, function, ours).empty())
    log(LogLevel::info, "UCX calls no ", function, "() in ", library);
}

}  // namespace

void shut_silent_connections() {
  static std::atomic<uint64_t> next{0};  // by the plain clock: most calls end here
  if (steady_us() < next) return;
  static AwakeClock clock;
  static uint64_t looked = 0;
  static auto& silent = *new std::map<int, ino_t>;  // at the last look
  const std::lock_guard<std::mutex> lock(mutex);
  next = steady_us() + kBetweenLooks_us / 2;
  const uint64_t now = clock.now();
  if (now - looked < kBetweenLooks_us) return;
  looked = now;
  const std::map<int, ino_t> before = std::exchange(silent, {});
  for (size_t i = 0; i < sockets().size(); ++i) {
    const int fd = int(i);
    const ino_t inode = sockets()[i];
    if (!is_noted(i) || !is_silent(fd)) continue;
    // Twice, so that what has come while this process or its host was stopped has been taken.
    const auto known = before.find(fd);
    if (known == before.end() || known->second != inode)
      silent.emplace(fd, inode);
    else
      shutdown(fd, SHUT_RDWR);
  }
}

void steer_ucx_system_calls() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                   [] {
                     close_sockets();
                     mutex.unlock();
                   });
    try {
      hook("/libucs.so", "socket", reinterpret_cast<void*>(&open_socket));
      hook("/libucs.so", "accept", reinterpret_cast<void*>(&accept_peer));
      hook("/libuct.so", "open", reinterpret_cast<void*>(&open_file_of_ucx));
      hook("/libuct.so", "shm_open", reinterpret_cast<void*>(&open_shared_memory));
      hook("/libuct.so", "shm_unlink", reinterpret_cast<void*>(&remove_shared_memory));
      hook("/libuct.so", "ucs_sys_get_proc_create_time", reinterpret_cast<void*>(&begin_of));
    } catch (const Error& why) {
      log(LogLevel::warning,
          "UCX may keep file descriptors of ended connections open: ", why.what());
    }
  });
}

}  // namespace omnihvd
