// Writes blocks, packed or plain, to their places in a tensor. Other blocks are not touched.
#pragma once

#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

// One record for each group of S::kLanes lanes. All lanes of the warp must call it; lanes without a
// record pass an empty one.
template <int kWidth, int kBlock>
__device__ void scatter_block(const Tensor<kWidth>& tensor, const Record& record,
                              const uint8_t* data) {
  using S = Shape<kWidth, kBlock>;
  const uint32_t lane = threadIdx.x % 32, lane_of_block = lane % S::kLanes;
  const uint32_t bytes = record.place & 0xffff;
  const uint32_t n = bytes ? S::elements_of(record.block, tensor.elements()) : 0;
  const uint8_t* from = data + (record.place >> 16);
  const bool packed = bytes < n * kWidth;

  // Each lane handles 32 elements of a packed block: which are present, and how many come before
  // them.
  const uint32_t bitmap_bytes = (n + 7) / 8;
  uint32_t word = 0, before = 0;
  if (__any_sync(kWarp, packed)) {
    if (packed) {
      for (uint32_t i = 0; i < 4; ++i)
        if (lane_of_block * 4 + i < bitmap_bytes)
          word |= uint32_t(from[lane_of_block * 4 + i]) << (8 * i);
    }
    before = sums_to_here<S::kLanes>(__popc(word), lane) - __popc(word);
  }

  constexpr uint32_t kBatch = S::kRows < 4 ? S::kRows : 4;  // rows in flight
#pragma unroll 1
  for (uint32_t batch = 0; batch < S::kRows; batch += kBatch) {
    Vector<kWidth> rows[kBatch];
#pragma unroll
    for (uint32_t row = 0; row < kBatch; ++row) {
      // The element's index in the block; bit first % 32 of the word is this element's.
      const uint32_t first = ((batch + row) * 32 + lane_of_block) * S::kVectorElements;
      const uint32_t keeper = lane - lane_of_block + first / 32;
      const uint32_t keeper_word = __shfl_sync(kWarp, word, keeper);
      uint32_t rank = __shfl_sync(kWarp, before, keeper);
      const uint8_t* vector = from + first * kWidth;
      if (packed) {
        rank += __popc(keeper_word & ((1u << (first % 32)) - 1));
#pragma unroll
        for (uint32_t e = 0; e < S::kVectorElements; ++e) {
          if (keeper_word >> (first % 32 + e) & 1)
            rows[row].elements[e] = load_element<kWidth>(from + bitmap_bytes + rank++ * kWidth);
        }
      } else if (first + S::kVectorElements <= n && uint64_t(vector) % 16 == 0) {
        rows[row] = *reinterpret_cast<const uint4*>(vector);
      } else {
#pragma unroll
        for (uint32_t e = 0; e < S::kVectorElements; ++e)
          if (first + e < n) rows[row].elements[e] = load_element<kWidth>(vector + e * kWidth);
      }
    }
#pragma unroll
    for (uint32_t row = 0; row < kBatch; ++row) {
      const uint32_t first = ((batch + row) * 32 + lane_of_block) * S::kVectorElements;
      if (n) tensor.store(record.block * kBlock + first, rows[row]);
    }
  }
}

template <int kWidth, int kBlock>
__device__ void scatter_blocks(const Tensor<kWidth>& tensor, const Record* records, uint64_t count,
                               const uint8_t* data) {
  using S = Shape<kWidth, kBlock>;
  constexpr uint32_t kAtOnce = 32 / S::kLanes;  // of a warp
  const uint64_t warp = (uint64_t(blockIdx.x) * kScatterThreads + threadIdx.x) / 32;
  const uint64_t warps = uint64_t(gridDim.x) * (kScatterThreads / 32);
#pragma unroll 1
  for (uint64_t first = warp * kAtOnce; first < count; first += warps * kAtOnce) {
    const uint64_t index = first + threadIdx.x % 32 / S::kLanes;
    scatter_block<kWidth, kBlock>(tensor, index < count ? records[index] : Record{0, 0}, data);
  }
}

}  // namespace kernels
}  // namespace omnihvd
