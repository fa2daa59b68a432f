// Selects exactly `count` blocks with the largest norms. Among equal norms the first blocks win.
//
// One thread block does all the work, so that no thread block waits for another. Norms order like
// their bits do. So the kernel finds the bits of the smallest chosen norm eleven at a time, with a
// histogram of the next digit, and then compares each norm with it. A thread has four norms in
// flight, and lanes with norms in the same bin count as one.
#pragma once

#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

constexpr uint32_t kChooseThreads = 1024;
constexpr int kDigitBits = 11;
constexpr uint32_t kDigits = 1u << kDigitBits;

// All non-finite norms count as equal, and as the largest.
__device__ inline uint32_t key_of(uint32_t norm) {
  const uint32_t magnitude = norm & 0x7fffffff;
  return magnitude < 0x7f800000 ? magnitude : 0x7f800000;
}

// Among the norms with the higher digits `prefix`: counts how many have each next digit.
__device__ inline void count_digits(const Tensor<4>& norms, int shift, uint32_t prefix,
                                    uint32_t* bins) {
  const uint32_t lower = (1u << (threadIdx.x % 32)) - 1;
#pragma unroll 1
  for (uint64_t i = 4 * threadIdx.x; i - 4 * threadIdx.x < norms.elements();
       i += 4 * kChooseThreads) {
    const Vector<4> four = norms.load(i);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t key = key_of(four.elements[e]), digit = key >> shift & (kDigits - 1);
      const bool counts =
          i + e < norms.elements() && uint64_t(key) >> (shift + kDigitBits) == prefix;
      const uint32_t peers = __match_any_sync(kWarp, counts ? digit : kDigits);
      if (counts && !(peers & lower)) atomicAdd(&bins[digit], uint32_t(__popc(peers)));
    }
  }
}

// Called by the first warp: appends the digit of the smallest chosen norm to *prefix, and subtracts
// the norms with a larger digit from *wanted.
__device__ inline void find_digit(const uint32_t* bins, uint32_t* prefix, uint32_t* wanted) {
  constexpr uint32_t kOfLane = kDigits / 32;
  const uint32_t lane = threadIdx.x % 32, still = *wanted;
  uint32_t own = 0;
#pragma unroll 4
  for (uint32_t j = 0; j < kOfLane; ++j) own += bins[lane * kOfLane + (j + lane) % kOfLane];
  const uint32_t to_here = sums_to_here<32>(own, lane);
  uint32_t above = __shfl_sync(kWarp, to_here, 31) - to_here;  // in the lanes above
  __syncwarp();                                                // all have read *wanted
  if (above >= still || above + own < still) return;
  uint32_t digit = lane * kOfLane + kOfLane - 1;
  while (above + bins[digit] < still) above += bins[digit--];
  *prefix = *prefix << kDigitBits | digit;
  *wanted = still - above;
}

// keep: 1 for norms above `least`, and for the first `ties` that equal it.
__device__ inline void mark_chosen(const Tensor<4>& norms, uint32_t least, uint32_t ties,
                                   uint8_t* keep) {
  uint32_t seen = 0;  // ties
#pragma unroll 1
  for (uint64_t i = 4 * threadIdx.x; i - 4 * threadIdx.x < norms.elements();
       i += 4 * kChooseThreads) {
    const Vector<4> four = norms.load(i);
    uint32_t own = 0, rank;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      own += i + e < norms.elements() && key_of(four.elements[e]) == least;
    const uint32_t sum = cta_sum<kChooseThreads>(own, &rank);
    rank += seen;
    seen += sum;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (i + e >= norms.elements()) break;
      const uint32_t key = key_of(four.elements[e]);
      keep[i + e] = key > least || (key == least && rank++ < ties);
    }
  }
}

// 1 <= count <= elements of norms.
__device__ inline void choose_largest(const Tensor<4>& norms, uint32_t count, uint8_t* keep) {
  __shared__ uint32_t bins[kDigits];
  __shared__ uint32_t least, wanted;
  if (threadIdx.x == 0) {
    least = 0;
    wanted = count;
  }
#pragma unroll 1
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (uint32_t i = threadIdx.x; i < kDigits; i += kChooseThreads) bins[i] = 0;
    __syncthreads();
    count_digits(norms, shift, least, bins);
    __syncthreads();
    if (threadIdx.x < 32) find_digit(bins, &least, &wanted);
    __syncthreads();
  }
  mark_chosen(norms, least, wanted, keep);
}

}  // namespace kernels
}  // namespace omnihvd
