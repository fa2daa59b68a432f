// Finds the non-zero blocks of a tensor and writes them one after another, in one read of it.
//
// A warp loads a tile of 8 KiB into registers: each lane has 16 loads of 16 bytes in flight. If the
// tile is all zero, the warp is done with it. Otherwise the tile goes to shared memory, where its
// blocks move together in place, packed or plain. A block never grows, and the blocks before it
// have shrunk or gone, so writes only touch what has already been read. The result is written in
// whole 16-byte vectors from a multiple of 128 bytes on, which suits device memory as well as
// pinned host memory behind PCIe.
//
// Order: the blocks of a tile stay contiguous and in ascending order. Tiles come in the order in
// which their warps draw a ticket: one atomic addition to each total. No reader needs more. The
// receiver's next window, not the sender, decides which blocks make a message, so the engine looks
// up every block by its number; the list of block positions costs only 16 bytes for each non-zero
// block. An ordered result would make every tile wait for all tiles before it, for no gain. No
// thread ever waits for another warp.
#pragma once

#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

// As in omnihvd/csrc/numeric/block_ops.h: unpacking a packed block is more work than copying a
// plain one.
__device__ inline bool worth_packing(uint32_t n, uint32_t nonzero, uint32_t width) {
  return 4 * ((n + 7) / 8 + nonzero * width) <= 3 * n * width;
}

// A warp's share of shared memory.
template <int kWidth, int kBlock>
struct Tile {
  static constexpr uint32_t kVectors = kTileBytes / 16;
  static constexpr uint32_t kBlocks = kTileBytes / (kBlock * kWidth);
  struct Found {
    uint16_t block;   // of the tile
    uint16_t vector;  // of the result
    uint16_t bytes;
  };
  uint4 vectors[kVectors];
  Found found[kBlocks];
};

// Writes a block's packed form to `out`. All lanes must call it; lanes of unpacked blocks pass
// null.
template <int kWidth, bool kFloat, int kBlock>
__device__ void pack(const Vector<kWidth>* rows, uint32_t n, uint8_t* out, uint32_t lane) {
  using S = Shape<kWidth, kBlock>;
  const uint32_t bitmap_bytes = (n + 7) / 8;
  uint32_t before = 0;  // non-zeros of the rows before
#pragma unroll
  for (uint32_t row = 0; row < S::kRows; ++row) {
    const uint32_t mask = occupancy<kWidth, kFloat>(rows[row]);
    const uint32_t first = S::place(row);
    uint32_t word = mask << (first % 32);
#pragma unroll
    for (uint32_t d = 1; d < S::kWordLanes; d *= 2) word |= __shfl_xor_sync(kWarp, word, d);
    const uint32_t to_here = sums_to_here<S::kLanes>(__popc(mask), lane);
    uint32_t at = bitmap_bytes + (before + to_here - __popc(mask)) * kWidth;
    before += __shfl_sync(kWarp, to_here, lane | (S::kLanes - 1));
    if (!out) continue;
    if (first % 32 == 0) {
      for (uint32_t i = 0; i < 4; ++i)
        if (first / 8 + i < bitmap_bytes) out[first / 8 + i] = uint8_t(word >> (8 * i));
    }
#pragma unroll
    for (uint32_t e = 0; e < S::kVectorElements; ++e) {
      if (mask >> e & 1) {
        store_element<kWidth>(out + at, rows[row].elements[e]);
        at += kWidth;
      }
    }
  }
}

template <int kWidth, bool kFloat, int kBlock>
__device__ void compact_tile(const Tensor<kWidth>& tensor, uint64_t tile_index,
                             Tile<kWidth, kBlock>& tile, uint32_t flags, Totals* totals,
                             uint32_t* bitmap, Record* records, uint4* data) {
  using S = Shape<kWidth, kBlock>;
  using T = Tile<kWidth, kBlock>;
  constexpr uint32_t kTileRows = T::kVectors / 32;
  constexpr uint32_t kTileElements = kTileBytes / kWidth;
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t first = tile_index * kTileElements;

  Vector<kWidth> held[kTileRows];
  uint64_t run;
  const uint64_t address = tensor.find(first, &run);
  if (run >= kTileElements && address % 16 == 0) {
    const uint4* from = reinterpret_cast<const uint4*>(address) + lane;
#pragma unroll
    for (uint32_t row = 0; row < kTileRows; ++row) held[row] = __ldcs(from + row * 32);
  } else {  // the tensor's end, or an odd address: through shared memory to keep the code short
#pragma unroll 1
    for (uint32_t i = lane; i < T::kVectors; i += 32)
      tile.vectors[i] = tensor.load(first + i * S::kVectorElements).words;
#pragma unroll
    for (uint32_t row = 0; row < kTileRows; ++row) held[row] = tile.vectors[row * 32 + lane];
  }
  Vector<kWidth> all;
#pragma unroll
  for (uint32_t row = 0; row < kTileRows; ++row) all |= held[row];
  if (!(flags & kClearNegativeZeros)) all = magnitudes<kWidth, kFloat>(all);
  if (!__any_sync(kWarp, all.any())) return;
#pragma unroll
  for (uint32_t row = 0; row < kTileRows; ++row) tile.vectors[row * 32 + lane] = held[row].words;

  uint32_t used = 0;  // of the result: records << 16 | vectors
#pragma unroll 1
  for (uint32_t band = 0; band < T::kVectors / S::kBandVectors; ++band) {
    Vector<kWidth> rows[S::kRows];
    uint32_t nonzero = 0;
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row) {
      rows[row] = tile.vectors[band * S::kBandVectors + row * 32 + lane];
      nonzero += __popc(occupancy<kWidth, kFloat>(rows[row]));
    }
#pragma unroll
    for (uint32_t d = 1; d < S::kLanes; d *= 2) nonzero += __shfl_xor_sync(kWarp, nonzero, d);

    const uint32_t block_in_tile = band * S::kBandBlocks + lane / S::kLanes;
    const uint64_t block = tile_index * T::kBlocks + block_in_tile;
    const uint32_t n = S::elements_of(block, tensor.elements());
    const bool packed = nonzero && flags & kPack && worth_packing(n, nonzero, kWidth);
    const uint32_t bytes = !nonzero ? 0 : packed ? (n + 7) / 8 + nonzero * kWidth : n * kWidth;

    // Room for the band's blocks: sums over its blocks, not its lanes.
    const uint32_t size = nonzero ? 1u << 16 | (bytes + 15) / 16 : 0;
    uint32_t end = size;
    uint32_t bits = uint32_t(nonzero != 0) << (block % 32);
#pragma unroll
    for (uint32_t d = S::kLanes; d < 32; d *= 2) {
      const uint32_t other = __shfl_up_sync(kWarp, end, d);
      if (lane >= d) end += other;
      bits |= __shfl_xor_sync(kWarp, bits, d);
    }
    const uint32_t start = used + end - size;
    used += __shfl_sync(kWarp, end, 31);
    if (lane == 0 && bits) atomicOr(&bitmap[block / 32], bits);

    if (flags & kClearNegativeZeros && !nonzero) {
#pragma unroll 1
      for (uint32_t i = lane % S::kLanes; i < S::kBlockVectors; i += S::kLanes) {
        if (Vector<kWidth>(tile.vectors[block_in_tile * S::kBlockVectors + i]).any())
          tensor.store(block * kBlock + i * S::kVectorElements, Vector<kWidth>());
      }
    }

    __syncwarp();  // the band has been read: its place may be written
    uint4* out = tile.vectors + (start & 0xffff);
    if (__any_sync(kWarp, packed))
      pack<kWidth, kFloat, kBlock>(rows, n, packed ? reinterpret_cast<uint8_t*>(out) : nullptr,
                                   lane);
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row) {
      if (nonzero && !packed) out[row * 32 + lane % S::kLanes] = rows[row].words;
    }
    if (nonzero && lane % S::kLanes == 0)
      tile.found[start >> 16] = {uint16_t(block_in_tile), uint16_t(start), uint16_t(bytes)};
  }
  if (!used) return;  // negative zeros

  // The ticket: lane 0 draws room for the records, lane 1 for the data, in whole lines of memory.
  const uint32_t n_records = used >> 16;
  const uint32_t n_bytes = ((used & 0xffff) * 16 + kTileUnit - 1) / kTileUnit * kTileUnit;
  unsigned long long ticket = 0;
  if (lane < 2) {
    ticket =
        atomicAdd(reinterpret_cast<unsigned long long*>(lane ? &totals->bytes : &totals->records),
                  (unsigned long long)(lane ? n_bytes : n_records));
  }
  const uint64_t first_record = __shfl_sync(kWarp, ticket, 0);
  const uint64_t first_byte = __shfl_sync(kWarp, ticket, 1);
  __syncwarp();  // the tile's result is complete
  // Whole lines: a copy of the result reads no gap that nobody has written.
  for (uint32_t i = lane; i < n_bytes / 16; i += 32) data[first_byte / 16 + i] = tile.vectors[i];
  for (uint32_t i = lane; i < n_records; i += 32) {
    const typename T::Found found = tile.found[i];
    records[first_record + i] = {tile_index * T::kBlocks + found.block,
                                 (first_byte + found.vector * 16) << 16 | found.bytes};
  }
}

// Each warp loops over tiles, because there may be fewer warps than tiles.
template <int kWidth, bool kFloat, int kBlock>
__device__ void compact_tiles(const Tensor<kWidth>& tensor, uint32_t flags, Totals* totals,
                              uint32_t* bitmap, Record* records, uint4* data) {
  __shared__ Tile<kWidth, kBlock> tiles[kCompactThreads / 32];
  constexpr uint32_t kWarps = kCompactThreads / 32, kTileElements = kTileBytes / kWidth;
  uint64_t tile = uint64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
#pragma unroll 1
  for (; tile * kTileElements < tensor.elements(); tile += uint64_t(gridDim.x) * kWarps) {
    compact_tile<kWidth, kFloat, kBlock>(tensor, tile, tiles[threadIdx.x / 32], flags, totals,
                                         bitmap, records, data);
    __syncwarp();  // all lanes have done with the tile's memory
  }
}

}  // namespace kernels
}  // namespace omnihvd
