// A tensor in device memory, seen 16 bytes at a time, and the zero test on an element's bits.
#pragma once

#include "abi.cuh"

namespace omnihvd {
namespace kernels {

template <int kWidth>
struct BitsOf;
template <>
struct BitsOf<1> {
  using type = uint8_t;
};
template <>
struct BitsOf<2> {
  using type = uint16_t;
};
template <>
struct BitsOf<4> {
  using type = uint32_t;
};
template <>
struct BitsOf<8> {
  using type = uint64_t;
};

// 16 bytes: what one load of a lane brings.
template <int kWidth>
struct Vector {
  using Bits = typename BitsOf<kWidth>::type;
  static constexpr int kElements = 16 / kWidth;

  union {
    uint4 words;
    Bits elements[kElements];
  };

  __device__ Vector() : words{0, 0, 0, 0} {}
  __device__ Vector(const uint4& w) : words(w) {}
  __device__ bool any() const { return (words.x | words.y | words.z | words.w) != 0; }
  __device__ void operator|=(const Vector& o) {
    words.x |= o.words.x;
    words.y |= o.words.y;
    words.z |= o.words.z;
    words.w |= o.words.w;
  }
};

// Clears the bits that do not count in the zero test: the signs of floating-point numbers. NaN,
// infinity and denormal numbers all have other bits set.
template <int kWidth, bool kFloat>
__device__ Vector<kWidth> magnitudes(Vector<kWidth> v) {
  if (kFloat) {
    constexpr uint32_t high = kWidth == 2 ? 0x7fff7fffu : 0x7fffffffu;
    constexpr uint32_t low = kWidth == 8 ? ~0u : high;
    v.words.x &= low;
    v.words.y &= high;
    v.words.z &= low;
    v.words.w &= high;
  }
  return v;
}

// Bit e: element e is not zero.
template <int kWidth, bool kFloat>
__device__ uint32_t occupancy(const Vector<kWidth>& vector) {
  const Vector<kWidth> v = magnitudes<kWidth, kFloat>(vector);
  uint32_t mask = 0;
#pragma unroll
  for (int e = 0; e < Vector<kWidth>::kElements; ++e) mask |= uint32_t(v.elements[e] != 0) << e;
  return mask;
}

// Elements at any address: packed values lie behind a bitmap of any length.
template <int kWidth>
__device__ typename BitsOf<kWidth>::type load_element(const uint8_t* from) {
  using Bits = typename BitsOf<kWidth>::type;
  if (uint64_t(from) % kWidth == 0) return *reinterpret_cast<const Bits*>(from);
  Bits value = 0;
  for (int i = 0; i < kWidth; ++i) value |= Bits(from[i]) << (8 * i);
  return value;
}

template <int kWidth>
__device__ void store_element(uint8_t* to, typename BitsOf<kWidth>::type value) {
  using Bits = typename BitsOf<kWidth>::type;
  if (uint64_t(to) % kWidth == 0) {
    *reinterpret_cast<Bits*>(to) = value;
  } else {
    for (int i = 0; i < kWidth; ++i) to[i] = uint8_t(value >> (8 * i));
  }
}

template <int kWidth>
class Tensor {
 public:
  using Bits = typename BitsOf<kWidth>::type;
  using Vec = Vector<kWidth>;

  __device__ Tensor(uint64_t address, uint64_t elements, const Segment* segments,
                    uint32_t n_segments)
      : address_(address), elements_(elements), segments_(segments), n_segments_(n_segments) {}

  __device__ uint64_t elements() const { return elements_; }

  // Address of element i, which must exist; `run` elements lie one after another from there.
  __device__ uint64_t find(uint64_t i, uint64_t* run) const {
    if (n_segments_ == 0) {
      *run = elements_ - i;
      return address_ + i * kWidth;
    }
    uint32_t low = 0, high = n_segments_ - 1;
    while (low < high) {  // the first segment that ends behind i
      const uint32_t middle = (low + high) / 2;
      if (segments_[middle].end > i)
        high = middle;
      else
        low = middle + 1;
    }
    const uint64_t begin = low ? segments_[low - 1].end : 0;
    *run = segments_[low].end - i;
    return segments_[low].address + (i - begin) * kWidth;
  }

  // Elements i to i + 16 / kWidth; those behind the tensor's end are 0.
  __device__ Vec load(uint64_t i) const {
    Vec v;
    if (i >= elements_) return v;
    uint64_t run;
    uint64_t from = find(i, &run);
    if (run >= Vec::kElements) {
      if (from % 16 == 0) return Vec(*reinterpret_cast<const uint4*>(from));
#pragma unroll
      for (int e = 0; e < Vec::kElements; ++e) v.elements[e] = reinterpret_cast<Bits*>(from)[e];
      return v;
    }
#pragma unroll
    for (int e = 0; e < Vec::kElements; ++e) {
      if (i + e < elements_) v.elements[e] = *reinterpret_cast<Bits*>(find(i + e, &run));
    }
    return v;
  }

  // The opposite: elements behind the tensor's end are dropped.
  __device__ void store(uint64_t i, const Vec& v) const {
    if (i >= elements_) return;
    uint64_t run;
    const uint64_t to = find(i, &run);
    if (run >= Vec::kElements) {
      if (to % 16 == 0) {
        *reinterpret_cast<uint4*>(to) = v.words;
        return;
      }
#pragma unroll
      for (int e = 0; e < Vec::kElements; ++e) reinterpret_cast<Bits*>(to)[e] = v.elements[e];
      return;
    }
#pragma unroll
    for (int e = 0; e < Vec::kElements; ++e) {
      if (i + e < elements_) *reinterpret_cast<Bits*>(find(i + e, &run)) = v.elements[e];
    }
  }

 private:
  uint64_t address_, elements_;
  const Segment* segments_;
  uint32_t n_segments_;
};

// How the lanes of a warp share a block of kBlock elements. A band is the smallest set of whole
// rows (512 bytes, 16 for each lane) that holds whole blocks: one row with several blocks, or one
// block of several rows.
template <int kWidth, int kBlock>
struct Shape {
  static constexpr uint32_t kVectorElements = 16 / kWidth;
  static constexpr uint32_t kBlockVectors = kBlock / kVectorElements;
  static constexpr uint32_t kLanes = kBlockVectors < 32 ? kBlockVectors : 32;  // of one block
  static constexpr uint32_t kRows = kBlockVectors / kLanes;                    // of a band
  static constexpr uint32_t kBandBlocks = 32 / kLanes;
  static constexpr uint32_t kBandVectors = 32 * kRows;
  static constexpr uint32_t kWordLanes = 32 / kVectorElements;  // lanes of 32 elements

  static_assert(kBlock >= 32 && kBlock <= 1024 && (kBlock & (kBlock - 1)) == 0,
                "block sizes are powers of two from 32 to 1024");

  // The place in its block of the first element that this lane has in a row.
  __device__ static uint32_t place(uint32_t row) {
    return (row * 32 + threadIdx.x % 32 % kLanes) * kVectorElements;
  }

  __device__ static uint32_t elements_of(uint64_t block, uint64_t elements) {
    const uint64_t first = block * kBlock;
    if (first >= elements) return 0;
    return elements - first < kBlock ? uint32_t(elements - first) : kBlock;
  }
};

constexpr uint32_t kWarp = 0xffffffffu;  // all lanes

// Calls work(block) for the warp's share of `blocks`, in launches of kCodeThreads. The lanes of a
// warp call it together, also past the end.
template <int kBlock, class Work>
__device__ void for_each_block(uint64_t blocks, Work work) {
  using S = Shape<4, kBlock>;
  const uint32_t warp = (blockIdx.x * kCodeThreads + threadIdx.x) / 32;
  const uint32_t step = gridDim.x * (kCodeThreads / 32) * S::kBandBlocks;
#pragma unroll 1
  for (uint64_t first = uint64_t(warp) * S::kBandBlocks; first < blocks; first += step)
    work(uint32_t(first) + threadIdx.x % 32 / S::kLanes);
}

// The prefix sum over the `kLanes` lanes of a block, this lane included.
template <uint32_t kLanes>
__device__ uint32_t sums_to_here(uint32_t value, uint32_t lane) {
#pragma unroll
  for (uint32_t d = 1; d < kLanes; d *= 2) {
    const uint32_t other = __shfl_up_sync(kWarp, value, d);
    if (lane % kLanes >= d) value += other;
  }
  return value;
}

// The sum over the CTA's threads, on all of them; *before is the sum over the threads before this
// one.
template <uint32_t kThreads>
__device__ uint32_t cta_sum(uint32_t value, uint32_t* before) {
  constexpr uint32_t kWarps = kThreads / 32;
  __shared__ uint32_t of_warp[kWarps];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t to_here = sums_to_here<32>(value, lane);
  __syncthreads();  // the last call's values have been read
  if (lane == 31) of_warp[warp] = to_here;
  __syncthreads();
  uint32_t sum = 0;
  *before = to_here - value;
#pragma unroll 4
  for (uint32_t i = 0; i < kWarps; ++i) {
    if (i < warp) *before += of_warp[i];
    sum += of_warp[i];
  }
  return sum;
}

// Error feedback: what remains of an element once `sent` has been sent; 0 if that is not finite.
__device__ inline float not_sent(float total, float sent) {
  const float left = __fadd_rn(total, -sent);
  return (__float_as_uint(left) & 0x7f800000) == 0x7f800000 ? 0 : left;
}

}  // namespace kernels
}  // namespace omnihvd
