// Sums by NCCL on the union of the ranks' non-zero blocks: which blocks there are, united over the
// ranks; the union's blocks copied into a dense buffer, and back.
//
// Bit b % 32 of word b / 32 is block b's. A word is the work of one warp, and nobody else writes
// it: there are no atomic operations, and no thread waits for another CTA. What one kernel needs of
// all CTAs of another is ordered by the stream.
#pragma once

#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

// Calls work(word) for the warp's share of [begin, end).
template <typename Work>
__device__ void for_each_word(uint64_t begin, uint64_t end, Work work) {
  constexpr uint32_t kWarps = kWordThreads / 32;
  uint64_t word = begin + uint64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
#pragma unroll 1
  for (; word < end; word += uint64_t(gridDim.x) * kWarps) work(word);
}

// The bits of a word's 32 blocks, on all lanes. whole: the word's blocks lie in the tensor, from an
// aligned address on. If they shall be cleared, blocks of nothing but zeros of either sign become
// 0.
template <int kWidth, bool kFloat, int kBlock, bool kWhole>
__device__ uint32_t mark_word(const Tensor<kWidth>& tensor, const uint4* from, uint64_t word,
                              bool clear) {
  using S = Shape<kWidth, kBlock>;
  constexpr uint32_t kBands = 32 / S::kBandBlocks;
  constexpr uint32_t kWanted = S::kRows < 8 ? 8 / S::kRows : 1;  // 8 loads of a lane in flight
  constexpr uint32_t kAtOnce = kWanted < kBands ? kWanted : kBands;
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t first = word * 32 * kBlock;  // element
  uint32_t bits = 0;
#pragma unroll 1
  for (uint32_t band = 0; band < kBands; band += kAtOnce) {
    Vector<kWidth> held[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
#pragma unroll(kWhole ? S::kRows : 1)
      for (uint32_t row = 0; row < S::kRows; ++row) {
        const uint32_t vector = (band + k) * S::kBandVectors + row * 32 + lane;  // of the word
        held[k] |= kWhole ? Vector<kWidth>(__ldcs(from + vector))
                          : tensor.load(first + vector * S::kVectorElements);
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t lanes = __ballot_sync(kWarp, magnitudes<kWidth, kFloat>(held[k]).any());
      const uint32_t raw = __ballot_sync(kWarp, held[k].any());
#pragma unroll 1
      for (uint32_t i = 0; i < S::kBandBlocks; ++i) {
        const uint32_t of_block = (S::kLanes == 32 ? kWarp : (1u << S::kLanes % 32) - 1)
                                  << (i * S::kLanes);
        const uint32_t block = (band + k) * S::kBandBlocks + i;
        if (lanes & of_block) {
          bits |= 1u << block;
        } else if (clear && raw & of_block) {
          __syncwarp();  // all have read: votes do not order memory
#pragma unroll 1
          for (uint32_t v = lane; v < S::kBlockVectors; v += 32)
            tensor.store(first + block * kBlock + v * S::kVectorElements, Vector<kWidth>());
        }
      }
    }
  }
  return bits;
}

template <int kWidth, bool kFloat, int kBlock>
__device__ void mark_blocks(const Tensor<kWidth>& tensor, uint32_t flags, uint64_t note,
                            uint8_t* record) {
  constexpr uint64_t kWordElements = 32 * kBlock;
  uint32_t* const words = reinterpret_cast<uint32_t*>(record + kRecordHead);
  if (blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<uint64_t*>(record) = note;
  for_each_word(0, (tensor.elements() + kWordElements - 1) / kWordElements, [&](uint64_t word) {
    uint64_t run;
    const uint64_t from = tensor.find(word * kWordElements, &run);
    const bool clear = flags & kClearNegativeZeros;
    const uint32_t bits =
        run >= kWordElements && from % 16 == 0
            ? mark_word<kWidth, kFloat, kBlock, true>(tensor, reinterpret_cast<const uint4*>(from),
                                                      word, clear)
            : mark_word<kWidth, kFloat, kBlock, false>(tensor, nullptr, word, clear);
    if (threadIdx.x % 32 == 0) words[word] = bits;
  });
}

// The sum over the CTA's threads, on all of them, and that over the threads before this one.
__device__ inline uint32_t cta_sum(uint32_t value, uint32_t* before) {
  constexpr uint32_t kWarps = kUniteThreads / 32;
  __shared__ uint32_t of_warp[kWarps];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t to_here = sums_to_here<32>(value, lane);
  __syncthreads();  // the last call's values have been read
  if (lane == 31) of_warp[warp] = to_here;
  __syncthreads();
  uint32_t sum = 0;
  *before = to_here - value;
#pragma unroll
  for (uint32_t i = 0; i < kWarps; ++i) {
    if (i < warp) *before += of_warp[i];
    sum += of_warp[i];
  }
  return sum;
}

__device__ inline void unite_chunk(const uint8_t* records, uint64_t stride, uint32_t ranks,
                                   uint32_t rank, uint64_t begin, uint64_t end, uint32_t* united,
                                   uint32_t* prefix, ChunkCounts* counts) {
  uint32_t carry = 0, own = 0, all = 0, unused;
#pragma unroll 1
  for (uint64_t first = begin; first < end; first += kUniteThreads) {
    const uint64_t word = first + threadIdx.x;
    uint32_t bits = 0;
    if (word < end) {
#pragma unroll 4
      for (uint32_t r = 0; r < ranks; ++r) {
        const uint32_t theirs =
            reinterpret_cast<const uint32_t*>(records + r * stride + kRecordHead)[word];
        bits |= theirs;
        all += __popc(theirs);
        if (r == rank) own += __popc(theirs);
      }
      united[word] = bits;
    }
    uint32_t before;
    const uint32_t sum = cta_sum(__popc(bits), &before);
    if (word < end) prefix[word] = carry + before;
    carry += sum;
  }
  own = cta_sum(own, &unused);
  all = cta_sum(all, &unused);
  if (threadIdx.x == 0) *counts = {carry, own, all, 0};
}

// Copies the blocks of `united` from the tensor to the buffer, or back; then fill: blocks that are
// not in the union become zero.
template <int kWidth, int kBlock, bool kBack>
__device__ void move_blocks(const Tensor<kWidth>& tensor, const Union& u, uint4* buffer,
                            bool fill) {
  using S = Shape<kWidth, kBlock>;
  constexpr uint32_t kAtOnce = 32 / S::kLanes;              // blocks of a warp
  constexpr uint32_t kBatch = S::kRows < 4 ? S::kRows : 4;  // rows in flight
  const uint32_t lane = threadIdx.x % 32, lane_of_block = lane % S::kLanes;
  for_each_word(u.first_word, u.end_word, [&](uint64_t word) {
    const uint32_t bits = u.united[word];
    if (!bits && !fill) return;
    const uint64_t start = u.starts[word / u.words_per_chunk] - u.base + u.prefix[word];
#pragma unroll 1
    for (uint32_t first = 0; first < 32; first += kAtOnce) {
      const uint32_t i = first + lane / S::kLanes;
      const bool present = bits >> i & 1;
      if (!present && !fill) continue;
      const uint64_t at = (word * 32 + i) * kBlock;
      uint4* const place = buffer + (start + __popc(bits & ((1u << i) - 1))) * S::kBlockVectors;
#pragma unroll 1
      for (uint32_t batch = 0; batch < S::kRows; batch += kBatch) {
        Vector<kWidth> rows[kBatch];
#pragma unroll
        for (uint32_t row = 0; row < kBatch; ++row) {
          const uint32_t vector = (batch + row) * 32 + lane_of_block;
          if (!kBack)
            rows[row] = tensor.load(at + vector * S::kVectorElements);
          else if (present)
            rows[row] = place[vector];
        }
#pragma unroll
        for (uint32_t row = 0; row < kBatch; ++row) {
          const uint32_t vector = (batch + row) * 32 + lane_of_block;
          if (kBack)
            tensor.store(at + vector * S::kVectorElements, rows[row]);
          else
            place[vector] = rows[row].words;
        }
      }
    }
  });
}

}  // namespace kernels
}  // namespace omnihvd
