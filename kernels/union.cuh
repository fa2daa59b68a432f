// Sums by NCCL on the union of the ranks' non-zero blocks: finds the blocks and unites them over
// the ranks; copies the union's blocks into a dense buffer, and back; and sums what does not fit
// the buffer.
//
// Bit b % 32 of word b / 32 belongs to block b; its mark is the byte b. One warp handles the blocks
// of a word. No thread waits for another CTA: the last CTA of unite adds up what all have counted,
// and the CUDA stream orders the kernels.
#pragma once

#include "scale.cuh"
#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

// Calls work(word) for the warp's share of the words.
template <typename Work>
__device__ void for_each_word(uint64_t words, Work work) {
  constexpr uint32_t kWarps = kWordThreads / 32;
  uint64_t word = uint64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
#pragma unroll 1
  for (; word < words; word += uint64_t(gridDim.x) * kWarps) work(word);
}

// The bits of a word's 32 blocks, on all lanes. whole: the word's blocks are all in the tensor and
// begin at an aligned address. If blocks shall be cleared, those of nothing but zeros of either
// sign become 0.
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
__device__ void mark_blocks(const Tensor<kWidth>& tensor, uint32_t flags, uint32_t trailer,
                            uint8_t* marks) {
  constexpr uint64_t kWordElements = 32 * kBlock;
  const uint64_t words = (tensor.elements() + kWordElements - 1) / kWordElements;
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *reinterpret_cast<uint32_t*>(marks + words * 32) = trailer;
  for_each_word(words, [&](uint64_t word) {
    uint64_t run;
    const uint64_t from = tensor.find(word * kWordElements, &run);
    const bool clear = flags & kClearNegativeZeros;
    const uint32_t bits =
        run >= kWordElements && from % 16 == 0
            ? mark_word<kWidth, kFloat, kBlock, true>(tensor, reinterpret_cast<const uint4*>(from),
                                                      word, clear)
            : mark_word<kWidth, kFloat, kBlock, false>(tensor, nullptr, word, clear);
    const uint32_t lane = threadIdx.x % 32;
    marks[word * 32 + lane] = bits >> lane & 1;
  });
}

// The bits of four marks: those of a word of memory that holds bytes of 0 or 1.
__device__ inline uint32_t four_bits(uint32_t bytes) { return bytes * 0x01020408u >> 24; }

__device__ inline void unite_chunk(const uint4* own, const uint4* all, uint64_t begin, uint64_t end,
                                   uint32_t* united, uint32_t* prefix, ChunkCounts* counts) {
  uint32_t carry = 0, mine = 0, unused;
#pragma unroll 1
  for (uint64_t first = begin; first < end; first += kUniteThreads) {
    const uint64_t word = first + threadIdx.x;
    uint32_t bits = 0;
    if (word < end) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint4 a = all[2 * word + half], o = own[2 * word + half];
        bits |= (four_bits(a.x) | four_bits(a.y) << 4 | four_bits(a.z) << 8 | four_bits(a.w) << 12)
                << 16 * half;
        mine += __popc(o.x) + __popc(o.y) + __popc(o.z) + __popc(o.w);
      }
      united[word] = bits;
    }
    uint32_t before;
    const uint32_t sum = cta_sum<kUniteThreads>(__popc(bits), &before);
    if (word < end) prefix[word] = carry + before;
    carry += sum;
  }
  mine = cta_sum<kUniteThreads>(mine, &unused);
  if (threadIdx.x == 0) *counts = {carry, mine};
}

// Computes where each chunk begins in the union, and, on the first thread, the totals for the host.
__device__ inline void total_chunks(const volatile ChunkCounts* counts, uint64_t chunks,
                                    uint64_t* starts, Seen* seen) {
  uint64_t carry = 0, mine = 0;
  uint32_t unused;
#pragma unroll 1
  for (uint64_t first = 0; first < chunks; first += kUniteThreads) {
    const uint64_t chunk = first + threadIdx.x;
    uint32_t before;
    const uint32_t sum = cta_sum<kUniteThreads>(chunk < chunks ? counts[chunk].united : 0, &before);
    if (chunk < chunks) starts[chunk] = carry + before;
    carry += sum;
    mine += cta_sum<kUniteThreads>(chunk < chunks ? counts[chunk].own : 0, &unused);
  }
  if (threadIdx.x != 0) return;
  starts[chunks] = carry;
  seen->united = carry;
  seen->own = mine;
}

// Whether this CTA is the last of the grid to come here; then it sees what all have written.
// *arrived is 0 before and afterwards.
__device__ inline bool is_last_cta(uint32_t* arrived) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    if (last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Copies the union's blocks from the tensor to the buffer, or back, as far as they fit the buffer.
// fill: zeros the blocks that are not in the union.
template <int kWidth, int kBlock, bool kBack>
__device__ void move_blocks(const Tensor<kWidth>& tensor, const Union& u, uint4* buffer,
                            bool fill) {
  using S = Shape<kWidth, kBlock>;
  constexpr uint32_t kAtOnce = 32 / S::kLanes;              // blocks of a warp
  constexpr uint32_t kBatch = S::kRows < 4 ? S::kRows : 4;  // rows in flight
  const uint32_t lane = threadIdx.x % 32, lane_of_block = lane % S::kLanes;
  for_each_word(u.words, [&](uint64_t word) {
    const uint32_t bits = u.united[word];
    if (!bits && !fill) return;
    const uint64_t start = u.starts[word / u.words_per_chunk] + u.prefix[word] - u.first;
#pragma unroll 1
    for (uint32_t first = 0; first < 32; first += kAtOnce) {
      const uint32_t i = first + lane / S::kLanes;
      const bool present = bits >> i & 1;
      const uint64_t place = start + __popc(bits & ((1u << i) - 1));  // before `first`: very large
      if (present ? place >= u.room : !fill) continue;
      const uint64_t at = (word * 32 + i) * kBlock;
      uint4* const from = buffer + place * S::kBlockVectors;
#pragma unroll 1
      for (uint32_t batch = 0; batch < S::kRows; batch += kBatch) {
        Vector<kWidth> rows[kBatch];
#pragma unroll
        for (uint32_t row = 0; row < kBatch; ++row) {
          const uint32_t vector = (batch + row) * 32 + lane_of_block;
          if (!kBack)
            rows[row] = tensor.load(at + vector * S::kVectorElements);
          else if (present)
            rows[row] = from[vector];
        }
#pragma unroll
        for (uint32_t row = 0; row < kBatch; ++row) {
          const uint32_t vector = (batch + row) * 32 + lane_of_block;
          if (kBack)
            tensor.store(at + vector * S::kVectorElements, rows[row]);
          else
            from[vector] = rows[row].words;
        }
      }
    }
  });
}

// Floating-point numbers become NaN: nobody takes them for a sum.
template <int kWidth>
__device__ void set_all_bits(const Tensor<kWidth>& tensor) {
  const Vector<kWidth> ones(uint4{~0u, ~0u, ~0u, ~0u});
  const uint64_t step = uint64_t(gridDim.x) * kWordThreads * Vector<kWidth>::kElements;
  uint64_t i = (uint64_t(blockIdx.x) * kWordThreads + threadIdx.x) * Vector<kWidth>::kElements;
#pragma unroll 1
  for (; i < tensor.elements(); i += step) tensor.store(i, ones);
}

// Sums the blocks beyond the union's first u.first, which rarely exist, through host memory, one
// window of u.room blocks after the other. One CTA does this, and no other CTA waits for it.
template <int kWidth, bool kFloat, int kBlock>
__device__ void sum_rest(const Tensor<kWidth>& in, const Tensor<kWidth>& out, Union u, Rest* rest,
                         uint64_t data, uint32_t dtype, double factor, uint32_t format) {
  __shared__ uint32_t over;
  volatile Rest* const shared = rest;
  uint4* const window = reinterpret_cast<uint4*>(data);
  const uint64_t end = u.starts[(u.words + u.words_per_chunk - 1) / u.words_per_chunk];
  if (threadIdx.x == 0) over = shared->failed;
  __syncthreads();
#pragma unroll 1
  for (; !over && u.first < end; u.first += u.room) {
    const uint64_t blocks = end - u.first < u.room ? end - u.first : u.room;
    move_blocks<kWidth, kBlock, false>(in, u, window, false);
    __syncthreads();
    if (kFloat && factor != 1) {
      const Tensor<kWidth> values(data, blocks * kBlock, nullptr, 0);
      scale_elements<kWidth, kWordThreads>(values, values, factor, format);
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t asked = shared->asked + 1;
      shared->blocks = blocks;
      shared->dtype = dtype;
      __threadfence_system();
      shared->asked = asked;
      while (shared->answered != asked && !shared->failed && !shared->alone) __nanosleep(500);
      over = shared->answered != asked;
    }
    __syncthreads();
    __threadfence_system();
    if (!over) move_blocks<kWidth, kBlock, true>(out, u, window, false);
    __syncthreads();
  }
  if (!over) return;
  set_all_bits(out);
  if (threadIdx.x == 0) shared->lost = 1;
}

}  // namespace kernels
}  // namespace omnihvd
