// What stands where in the common memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocol/codec.h"
#include "shared/gate.h"

namespace omnihvd {

// While one chunk is added, the next is given, and the sums of the one before are taken.
constexpr uint64_t kBuffers = 3;

// Of a tensor: fewer, larger chunks are fewer meetings; but those of all ranks are to fit into a
// cache, and into /dev/shm, which has 64 MiB in a container.
constexpr size_t chunk_bytes(int ranks) {
  return std::min<size_t>(1 << 20, std::max<size_t>(128 << 10, (4 << 20) / size_t(ranks)));
}

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// All zero at first.
struct SharedControl {
  alignas(128) Gate gates[2];
  std::atomic<uint32_t> failed;  // 1: somebody writes why; 2: it is written
  char why[1020];
};

struct SharedRank {
  std::atomic<uint64_t> steps;  // two for each chunk: to say who is late
  std::atomic<uint32_t> left;
  std::atomic<uint64_t> would_send;  // between hosts, for all sums so far
  // The sum that began last.
  uint32_t dtype;
  uint64_t count;
  Codec codec;
};

// Offsets in the memory of all, and in that of each rank.
struct SharedLayout {
  SharedLayout(uint32_t block_size, int ranks)
      : chunk(chunk_bytes(ranks)),
        blocks(chunk / block_size),  // at most, of one byte an element
        common(sizeof(SharedControl) + kBuffers * blocks * sizeof(uint16_t)),
        flags(round_up(sizeof(SharedRank), 128)),
        data(round_up(flags + kBuffers * blocks, 4096)),
        each(data + kBuffers * chunk) {}

  const size_t chunk;  // bytes
  const size_t blocks;
  const size_t common;
  const size_t flags, data;
  const size_t each;
};

}  // namespace omnihvd
