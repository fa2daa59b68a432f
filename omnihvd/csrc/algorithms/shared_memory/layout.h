// The layout of the shared memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "algorithms/shared_memory/gate.h"
#include "algorithms/shared_memory/peers.h"
#include "numeric/codec.h"

namespace omnihvd {

// While ranks add one chunk, they give the next, and take the sums of the previous one.
constexpr uint64_t kBuffers = 3;

// Bytes of a tensor per chunk. Fewer, larger chunks need fewer barriers; but the chunks of all
// ranks must fit into a cache, and into /dev/shm, which has 64 MiB in a container.
constexpr size_t chunk_bytes(int ranks) {
  return std::min<size_t>(1 << 20, std::max<size_t>(128 << 10, (4 << 20) / size_t(ranks)));
}

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// All zero at first.
struct SharedControl {
  alignas(128) Gate gates[2];
  SharedFailure failure;
};

struct SharedRank {
  std::atomic<uint64_t> steps;  // two per chunk: shows which rank is late
  std::atomic<uint32_t> left;
  std::atomic<uint64_t> would_send;  // between hosts, for all sums so far
  // The sum that began last.
  uint32_t dtype;
  bool scatters;  // a reduce-scatter
  uint64_t count;
  Codec codec;
};

// Offsets in the common memory, and in each rank's own.
struct SharedLayout {
  SharedLayout(uint32_t block_size, int ranks)
      : chunk(chunk_bytes(ranks)),
        blocks(chunk / block_size),  // at most: elements of one byte
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
