// An AF_XDP socket on one receive queue of a network device: memory shared with the kernel (UMEM),
// and four rings of descriptors for its chunks. One thread at a time.
//
//   fill        chunks for the kernel to receive into
//   receive     received frames
//   send        frames to send
//   completion  chunks of sent frames
//
// The kernel copies frames, unless the device's driver can write into this memory directly.
#pragma once

#include <linux/if_xdp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "transport/file_descriptor.h"

namespace omnihvd {

// A memory mapping, unmapped with its owner.
class Mapping {
 public:
  Mapping(size_t bytes, int fd, uint64_t offset);  // fd -1: anonymous memory; throws Error
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  uint8_t* at(uint64_t offset) const { return static_cast<uint8_t*>(memory_) + offset; }
  size_t size() const { return bytes_; }

 private:
  void* memory_;
  size_t bytes_;
};

// One end of a ring that is shared with the kernel.
template <class Entry>
class XskRing {
 public:
  // option: the socket option that sizes it; at: where its parts lie.
  XskRing(int socket, int option, uint64_t page, uint32_t entries, const xdp_ring_offset& at);

  // For a ring that this end fills: free() counts the free places, publish() hands filled ones to
  // the kernel, is_drained() tells whether the kernel has taken all.
  uint32_t free() const {
    return mask_ + 1 - (mine_ - __atomic_load_n(consumer_, __ATOMIC_ACQUIRE));
  }
  Entry& place(uint32_t i) const { return entries_[(mine_ + i) & mask_]; }
  void publish(uint32_t count) { __atomic_store_n(producer_, mine_ += count, __ATOMIC_RELEASE); }
  bool is_drained() const { return __atomic_load_n(consumer_, __ATOMIC_ACQUIRE) == mine_; }
  // For a ring that the kernel fills: filled() counts what is there, place() is the same, release()
  // returns what has been taken.
  uint32_t filled() const { return __atomic_load_n(producer_, __ATOMIC_ACQUIRE) - mine_; }
  void release(uint32_t count) { __atomic_store_n(consumer_, mine_ += count, __ATOMIC_RELEASE); }

 private:
  const Mapping memory_;
  uint32_t* const producer_;
  uint32_t* const consumer_;
  Entry* const entries_;
  const uint32_t mask_;
  uint32_t mine_ = 0;  // this end's counter
};

class XskSocket {
 public:
  static constexpr size_t kChunk = 2048;  // bytes; the kernel leaves 256 of them free in front
  // Throws Error: the kernel lacks AF_XDP, there is no such queue, or another socket has it.
  XskSocket(const std::string& interface, uint32_t queue);

  int fd() const { return socket_; }
  bool is_zero_copy() const;

  using Taken = std::function<void(uint8_t* frame, size_t size)>;
  // Passes received frames, up to a bound, to `taken`; a frame's chunk is valid until that returns.
  // Returns false if there was none.
  bool receive(const Taken& taken);
  // A chunk for an outgoing frame; nullptr if none is free because the device is behind.
  uint8_t* frame();
  void send(size_t size);    // the chunk from frame()
  void flush();              // asks the kernel to send
  uint64_t dropped() const;  // received frames for which there was no room

 private:
  void reclaim();

  const FileDescriptor socket_;
  const Mapping memory_;
  const xdp_mmap_offsets offsets_;
  XskRing<uint64_t> fill_, completion_;
  XskRing<xdp_desc> receive_, send_;
  std::vector<uint64_t> free_;  // chunks for frames to be sent
  uint32_t unpublished_ = 0;
};

}  // namespace omnihvd
