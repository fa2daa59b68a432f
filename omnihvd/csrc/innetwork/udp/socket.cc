#include "innetwork/udp/socket.h"

#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

#include "base/error.h"

#ifndef UDP_SEGMENT  // since Linux 4.18
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO  // since Linux 5.0
#define UDP_GRO 104
#endif

namespace omnihvd {
namespace {

constexpr size_t kMostOut = 512;              // datagrams before a flush
constexpr size_t kMostInRun = 64;             // the kernel's limit
constexpr size_t kMostRunBytes = 65000;       // below the size of an IP packet
constexpr size_t kIn = 16, kInBytes = 65536;  // receive buffers
constexpr int kRounds = 4;                    // of receiving, before other work gets its turn
constexpr int kBuffer = 4 << 20;              // bytes of kernel buffer, if permitted
constexpr int kPatienceMs = 2;                // while the kernel takes no more

void set_buffer(int socket, int forced, int plain) {
  if (setsockopt(socket, SOL_SOCKET, forced, &kBuffer, sizeof kBuffer) != 0)
    setsockopt(socket, SOL_SOCKET, plain, &kBuffer, sizeof kBuffer);
}

bool set_flag(int socket, int level, int name) {
  const int on = 1;
  return setsockopt(socket, level, name, &on, sizeof on) == 0;
}

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

// The size of each datagram if several came as one; 0: a single datagram.
size_t segment_of(msghdr& message) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_UDP || at->cmsg_type != UDP_GRO) continue;
    int size;
    std::memcpy(&size, CMSG_DATA(at), sizeof size);
    return size > 0 ? size_t(size) : 0;
  }
  return 0;
}

void wait_for_room(int socket) {
  pollfd room{socket, POLLOUT, 0};
  poll(&room, 1, kPatienceMs);
}

// A forked child holds none of its parent's sockets: else its host could not tell the peers that
// the parent has ended, as long as the child lives.
std::mutex mutex;  // guards sockets(); held during a fork
std::set<int>& sockets() {
  static auto& all = *new std::set<int>;
  return all;
}

// Async-signal-safe. The numbers stay in use, since their owners close them.
void drop_sockets() {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int socket : sockets()) dup3(nothing, socket, O_CLOEXEC);
  close(nothing);
  mutex.unlock();
}

}  // namespace

UdpSocket::UdpSocket(sockaddr_in at, bool shared)
    : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket"),
      heads_(kMostOut),
      in_(kIn * kInBytes) {
  socklen_t size = sizeof at;
  if (shared) set_flag(socket_, SOL_SOCKET, SO_REUSEADDR);
  if (bind(socket_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    throw Error(std::string("cannot open a socket of UDP: ") + std::strerror(errno));
  port_ = ntohs(at.sin_port);
  set_buffer(socket_, SO_RCVBUFFORCE, SO_RCVBUF);
  set_buffer(socket_, SO_SNDBUFFORCE, SO_SNDBUF);
  int bytes = 0;
  size = sizeof bytes;
  if (getsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, &size) == 0)
    receive_bytes_ = uint32_t(bytes);
  set_flag(socket_, IPPROTO_IP, IP_RECVERR);
  set_flag(socket_, SOL_UDP, UDP_GRO);
  const int none = 0;
  runs_ = setsockopt(socket_, SOL_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
  pieces_.reserve(2 * kMostOut);
  [[maybe_unused]] static const int once =
      pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, drop_sockets);
  const std::lock_guard<std::mutex> lock(mutex);
  sockets().insert(socket_);
}

UdpSocket::~UdpSocket() {
  const std::lock_guard<std::mutex> lock(mutex);
  sockets().erase(socket_);
}

void UdpSocket::add(const sockaddr_in& to, const uint8_t* head, size_t head_bytes, Slice rest) {
  if (pieces_.size() == 2 * kMostOut) flush();
  auto& copy = heads_[pieces_.size() / 2];
  std::memcpy(copy.data(), head, head_bytes);
  const size_t bytes = head_bytes + rest.size;
  const bool joins = runs_ && !out_.empty() && !out_.back().ended && out_.back().segment >= bytes &&
                     out_.back().pieces / 2 < kMostInRun &&
                     out_.back().bytes + bytes <= kMostRunBytes &&
                     out_.back().to.sin_addr.s_addr == to.sin_addr.s_addr &&
                     out_.back().to.sin_port == to.sin_port;
  if (!joins) out_.push_back({to, pieces_.size(), 0, bytes, 0, false});
  Run& run = out_.back();
  run.pieces += 2;
  run.bytes += bytes;
  run.ended = bytes < run.segment;
  pieces_.push_back({copy.data(), head_bytes});
  pieces_.push_back({const_cast<void*>(rest.data), rest.size});
}

void UdpSocket::flush() {
  if (!out_.empty()) send_all();
  out_.clear();
  pieces_.clear();
}

void UdpSocket::send_all() {
  std::vector<mmsghdr> messages(out_.size());
  std::vector<Control> controls(out_.size());
  for (size_t i = 0; i < out_.size(); ++i) {
    Run& run = out_[i];
    msghdr& message = messages[i].msg_hdr;
    message.msg_name = &run.to;
    message.msg_namelen = sizeof run.to;
    message.msg_iov = &pieces_[run.first];
    message.msg_iovlen = run.pieces;
    if (run.pieces == 2) continue;
    message.msg_control = controls[i].bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    cmsghdr* const control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const uint16_t segment = uint16_t(run.segment);
    std::memcpy(CMSG_DATA(control), &segment, sizeof segment);
  }
  size_t at = 0;
  for (int patience = 8; at < messages.size();) {
    const int sent = sendmmsg(socket_, &messages[at], unsigned(messages.size() - at), 0);
    if (sent > 0) {
      at += size_t(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      if (patience-- == 0) return;
      wait_for_room(socket_);
    } else if (out_[at].pieces > 2 && (errno == EINVAL || errno == EIO || errno == EMSGSIZE)) {
      runs_ = false;
      return split(at);
    } else {
      errors_ = true;
      if (errno != ECONNREFUSED || patience-- == 0) ++at;  // the error concerns an earlier datagram
    }
  }
}

// Sends one by one if a device or the route does not support runs.
void UdpSocket::split(size_t from) {
  for (; from < out_.size(); ++from) {
    const Run& run = out_[from];
    for (size_t i = 0; i < run.pieces; i += 2) {
      msghdr message{};
      message.msg_name = const_cast<sockaddr_in*>(&run.to);
      message.msg_namelen = sizeof run.to;
      message.msg_iov = &pieces_[run.first + i];
      message.msg_iovlen = 2;
      if (sendmsg(socket_, &message, 0) < 0 && errno == EAGAIN) {
        wait_for_room(socket_);
        sendmsg(socket_, &message, 0);
      }
    }
  }
}

bool UdpSocket::receive(const Taken& taken) {
  bool any = false;
  for (int round = 0; round < kRounds; ++round) {
    mmsghdr messages[kIn]{};
    iovec buffers[kIn];
    sockaddr_in from[kIn];
    Control controls[kIn];
    for (size_t i = 0; i < kIn; ++i) {
      buffers[i] = {&in_[i * kInBytes], kInBytes};
      msghdr& message = messages[i].msg_hdr;
      message.msg_name = &from[i];
      message.msg_namelen = sizeof from[i];
      message.msg_iov = &buffers[i];
      message.msg_iovlen = 1;
      message.msg_control = controls[i].bytes;
      message.msg_controllen = sizeof controls[i].bytes;
    }
    const int count = recvmmsg(socket_, messages, kIn, 0, nullptr);
    if (count <= 0) {
      errors_ |= count < 0 && errno != EAGAIN;
      break;
    }
    any = true;
    for (int i = 0; i < count; ++i) {
      const size_t bytes = messages[i].msg_len, run = segment_of(messages[i].msg_hdr);
      const size_t segment = run == 0 ? std::max<size_t>(bytes, 1) : run;
      for (size_t at = 0; at == 0 || at < bytes; at += segment)
        taken(from[i], &in_[size_t(i) * kInBytes] + at, std::min(segment, bytes - at));
    }
    if (size_t(count) < kIn) break;
  }
  return any;
}

std::vector<sockaddr_in> UdpSocket::refusals() {
  std::vector<sockaddr_in> all;
  for (; errors_;) {
    sockaddr_in to{};
    char control[512];
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    errors_ = recvmsg(socket_, &message, MSG_ERRQUEUE) >= 0;
    for (cmsghdr* at = errors_ ? CMSG_FIRSTHDR(&message) : nullptr; at;
         at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level != IPPROTO_IP || at->cmsg_type != IP_RECVERR) continue;
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(at), sizeof error);
      if (error.ee_errno == ECONNREFUSED) all.push_back(to);
    }
  }
  return all;
}

}  // namespace omnihvd
