// A socket of AF_XDP on one receive queue of a network device: memory shared with the kernel
// (UMEM), and four rings of descriptors of its chunks. One thread at a time.
//
//   fill        chunks for the kernel to receive into
//   receive     frames that have come
//   send        frames to go out
//   completion  chunks of those that have
//
// The kernel copies frames, unless the device's driver can have it write into this memory.
#pragma once

#include <linux/if_xdp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "transport/file_descriptor.h"

namespace omnihvd {

// Memory that is mapped, until its owner ends.
class Mapping {
 public:
  Mapping(size_t bytes, int fd, uint64_t offset);  // fd -1: memory of no file; throws Error
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  uint8_t* at(uint64_t offset) const { return static_cast<uint8_t*>(memory_) + offset; }
  size_t size() const { return bytes_; }

 private:
  void* memory_;
  size_t bytes_;
};

// A ring of which the kernel is the other end.
template <class Entry>
class XskRing {
 public:
  // of: its option of the socket, and where its parts lie.
  XskRing(int socket, int option, uint64_t page, uint32_t entries, const xdp_ring_offset& at);

  // Of a ring that this end fills: places that are free; those filled; and what the kernel lacks.
  uint32_t free() const;
  Entry& place(uint32_t i) const { return entries_[(mine_ + i) & mask_]; }
  void publish(uint32_t count);
  bool is_drained() const;
  // Of one that the kernel fills: what is there; place() is the same; what has been taken.
  uint32_t filled() const;
  void release(uint32_t count);

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
  // Throws Error: no AF_XDP, no such queue, or another socket has it.
  XskSocket(const std::string& interface, uint32_t queue);

  int fd() const { return socket_; }
  bool is_zero_copy() const;

  using Taken = std::function<void(uint8_t* frame, size_t size)>;
  // What has come, up to a bound, in its chunk until `taken` returns; false: nothing.
  bool receive(const Taken& taken);
  // A chunk for a frame that is to be sent; nullptr: none is free, the device is behind.
  uint8_t* frame();
  void send(size_t size);    // that chunk
  void flush();              // has the kernel send
  uint64_t dropped() const;  // frames that came and for which there was no room

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
