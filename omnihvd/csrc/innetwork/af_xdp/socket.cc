#include "innetwork/af_xdp/socket.h"

#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "innetwork/xdp/device.h"

namespace omnihvd {
namespace {

constexpr uint32_t kIn = 4096, kOut = 2048;  // chunks to receive into, and to send from
constexpr uint32_t kBatch = 64;              // frames received at a time
constexpr int kSendBytes = 8 << 20;          // how much of ours a copying kernel may hold

int open_socket() {
  const int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd < 0 && errno == EAFNOSUPPORT)
    throw Error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): use --xdp or --udp");
  if (fd < 0) throw Error("no socket of AF_XDP: " + why(errno));
  return fd;
}

void set(int fd, int option, const void* value, size_t size, const char* what) {
  if (setsockopt(fd, SOL_XDP, option, value, socklen_t(size)) != 0)
    throw Error(std::string("AF_XDP: ") + what + ": " + why(errno));
}

xdp_mmap_offsets registered(int fd, const Mapping& memory) {
  xdp_umem_reg region{};
  region.addr = reinterpret_cast<uintptr_t>(memory.at(0));
  region.len = memory.size();
  region.chunk_size = XskSocket::kChunk;
  set(fd, XDP_UMEM_REG, &region, sizeof region, "memory for frames");
  xdp_mmap_offsets offsets{};
  socklen_t size = sizeof offsets;
  if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) != 0 || size != sizeof offsets)
    throw Error("AF_XDP: this kernel's rings are older than Linux 5.4: use --udp");
  return offsets;
}

Mapping ring_memory(int fd, int option, uint64_t page, uint32_t entries, size_t bytes) {
  set(fd, option, &entries, sizeof entries, "a ring");
  return Mapping(bytes, fd, page);
}

void bind_to(int fd, const std::string& interface, uint32_t queue) {
  sockaddr_xdp at{};
  at.sxdp_family = AF_XDP;
  at.sxdp_flags = XDP_USE_NEED_WAKEUP;  // zero-copy where the driver supports it
  at.sxdp_ifindex = if_nametoindex(interface.c_str());
  at.sxdp_queue_id = queue;
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0) return;
  const std::string where = "queue " + std::to_string(queue) + " of interface " + interface;
  if (errno == EBUSY) throw Error("another program has an AF_XDP socket on " + where + ": end it");
  throw Error("no AF_XDP socket on " + where + ": " + why(errno));
}

}  // namespace

Mapping::Mapping(size_t bytes, int fd, uint64_t offset) : bytes_(bytes) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
  memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, off_t(offset));
  if (memory_ == MAP_FAILED)
    throw Error(std::string("AF_XDP: no memory for frames: ") + std::strerror(errno));
}

Mapping::~Mapping() { munmap(memory_, bytes_); }

template <class Entry>
XskRing<Entry>::XskRing(int socket, int option, uint64_t page, uint32_t entries,
                        const xdp_ring_offset& at)
    : memory_(ring_memory(socket, option, page, entries, at.desc + entries * sizeof(Entry))),
      producer_(reinterpret_cast<uint32_t*>(memory_.at(at.producer))),
      consumer_(reinterpret_cast<uint32_t*>(memory_.at(at.consumer))),
      entries_(reinterpret_cast<Entry*>(memory_.at(at.desc))),
      mask_(entries - 1) {}

XskSocket::XskSocket(const std::string& interface, uint32_t queue)
    : socket_(open_socket(), "socket"),
      memory_((kIn + kOut) * kChunk, -1, 0),
      offsets_(registered(socket_, memory_)),
      fill_(socket_, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, kIn, offsets_.fr),
      completion_(socket_, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, kOut,
                  offsets_.cr),
      receive_(socket_, XDP_RX_RING, XDP_PGOFF_RX_RING, kIn, offsets_.rx),
      send_(socket_, XDP_TX_RING, XDP_PGOFF_TX_RING, kOut, offsets_.tx) {
  for (uint32_t i = 0; i < kIn; ++i) fill_.place(i) = i * kChunk;
  fill_.publish(kIn);
  for (uint32_t i = 0; i < kOut; ++i) free_.push_back((kIn + i) * kChunk);
  setsockopt(socket_, SOL_SOCKET, SO_SNDBUFFORCE, &kSendBytes, sizeof kSendBytes);
  bind_to(socket_, interface, queue);
}

bool XskSocket::is_zero_copy() const {
  xdp_options options{};
  socklen_t size = sizeof options;
  getsockopt(socket_, SOL_XDP, XDP_OPTIONS, &options, &size);
  return options.flags & XDP_OPTIONS_ZEROCOPY;
}

bool XskSocket::receive(const Taken& taken) {
  const uint32_t count = std::min(receive_.filled(), kBatch);
  for (uint32_t i = 0; i < count; ++i) {
    const xdp_desc& frame = receive_.place(i);
    taken(memory_.at(frame.addr), frame.len);
    fill_.place(i) = frame.addr / kChunk * kChunk;
  }
  if (count == 0) return false;
  receive_.release(count);
  fill_.publish(count);  // always fits: a chunk is never in both rings
  return true;
}

uint8_t* XskSocket::frame() {
  if (free_.empty()) flush();
  return free_.empty() ? nullptr : memory_.at(free_.back());
}

// The ring has a place for every send chunk, so this cannot overflow.
void XskSocket::send(size_t size) {
  xdp_desc& frame = send_.place(unpublished_++);
  frame = {free_.back(), uint32_t(size), 0};
  free_.pop_back();
}

void XskSocket::reclaim() {
  const uint32_t count = completion_.filled();
  for (uint32_t i = 0; i < count; ++i) free_.push_back(completion_.place(i));
  completion_.release(count);
}

void XskSocket::flush() {
  send_.publish(std::exchange(unpublished_, 0));
  // A copying kernel takes some frames per call, and says if there are more. Frames for which it
  // has no room wait for the next flush, like lost results: workers ask again.
  for (uint32_t before = send_.free(); !send_.is_drained(); before = send_.free()) {
    const bool more = sendto(socket_, nullptr, 0, MSG_DONTWAIT, nullptr, 0) < 0 && errno == EAGAIN;
    if (!more || send_.free() == before) break;
  }
  reclaim();
}

uint64_t XskSocket::dropped() const {
  xdp_statistics counts{};
  socklen_t size = sizeof counts;
  getsockopt(socket_, SOL_XDP, XDP_STATISTICS, &counts, &size);
  return counts.rx_dropped + counts.rx_ring_full;
}

}  // namespace omnihvd
