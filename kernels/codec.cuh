// Codecs: blocks of float32 in the lossy formats of omnihvd/csrc/numeric/codec.h. The results are
// bit for bit those of its portable implementation: the same random numbers, and sums in the same
// order.
//
// One warp, or a part of it, handles a block and keeps its elements in registers. The output has
// two separate parts: heads (the largest power, the step, the two values) and codes, each in whole
// lines of memory (abi.cuh).
//
// A block cannot be coded if it contains NaN, infinity or a number near the largest. Its head says
// so (kNoPower, or NaN), and all of it decodes as NaN.
//
// No product may be fused into a sum. Where a product is not exact, __fmul_rn prevents it.
#pragma once

#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

constexpr uint32_t kSignBit = 0x80000000u, kInfiniteBits = 0x7f800000u, kNanBits = 0x7fc00000u;
constexpr uint32_t kNoPower = 255;
constexpr uint32_t kStepBits = 0x00800000u;     // of the smallest normal number
constexpr uint32_t kLargestBits = 0x7f7fffffu;  // of the largest finite one

__device__ inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ inline uint64_t whole_lines(uint64_t bytes) {
  return (bytes + kTileUnit - 1) / kTileUnit * kTileUnit;
}

__device__ inline bool has_two(Coding coding) {
  return coding.quantizer == kSign || coding.quantizer == kTwoMeans;
}

// The layout in abi.cuh.
template <int kBlock>
struct Parcels {
  uint32_t tag, block_codes;  // a parcel's first word; bytes of a block
  uint64_t codes, stride;     // where they begin in a parcel; bytes of a parcel

  __device__ Parcels(Coding coding, uint32_t seed, uint32_t n)
      : block_codes(kBlock * coding.bits / 8) {
    tag = uint32_t(mixed(mixed(uint64_t(seed) << 32 | coding.quantizer << 8 | coding.bits) + n));
    const uint32_t head = coding.quantizer == kPowers ? 1 : has_two(coding) ? 8 : 4;
    codes = kTileUnit + whole_lines(uint64_t(n) * head);
    stride = codes + whole_lines(uint64_t(n) * block_codes);
  }
};

// The engine's random numbers: they depend on a block's key and an element's place in the block.
struct Noise {
  uint32_t begin, turn;
  __device__ Noise(uint64_t key) : begin(uint32_t(key)), turn(uint32_t(key >> 32)) {}
  __device__ uint32_t at(uint32_t i) const {
    uint32_t x = begin + i * 0x9E3779B9u;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return (x ^ (x >> 16)) ^ turn;
  }
};

__device__ inline float magnitude_of(uint32_t bits) { return __uint_as_float(bits & ~kSignBit); }

// Reduces over the lanes of a block; all of them get the result.
template <uint32_t kLanes, class T, class Join>
__device__ T joined(T value, Join join) {
#pragma unroll
  for (uint32_t d = 1; d < kLanes; d *= 2) value = join(value, __shfl_xor_sync(kWarp, value, d));
  return value;
}

// A block, spread over its lanes.
template <int kBlock>
struct BlockOf {
  using S = Shape<4, kBlock>;
  Vector<4> rows[S::kRows];
  uint64_t address;  // of its first element
  uint32_t n;        // elements; 0: there is no such block, but the lanes take part

  __device__ BlockOf(const Tensor<4>& tensor, uint32_t block)
      : address(0), n(S::elements_of(block, tensor.elements())) {
    uint64_t run;
    if (n) address = tensor.find(uint64_t(block) * kBlock, &run);
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row)
      rows[row] = tensor.load(uint64_t(block) * kBlock + S::place(row));
  }

  // The bits of the largest magnitude; those of NaN are the largest of all.
  __device__ uint32_t largest() const {
    uint32_t most = 0;
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t a = rows[row].elements[e] & ~kSignBit;
        most = most < a ? a : most;
      }
    return joined<S::kLanes>(most, [](uint32_t a, uint32_t b) { return a < b ? b : a; });
  }

  __device__ uint32_t negatives() const {
    uint32_t count = 0;
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row)
#pragma unroll
      for (int e = 0; e < 4; ++e) count += rows[row].elements[e] >> 31;
    return joined<S::kLanes>(count, [](uint32_t a, uint32_t b) { return a + b; });
  }

  // Sums term(bits of an element) in the engine's order: eight sums over every eighth element,
  // which are then added up. This order requires reading the elements again, from the cache.
  template <class Term>
  __device__ double sum(Term term) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t* const elements = reinterpret_cast<const uint32_t*>(address);
    double own = 0, all = 0;
#pragma unroll 4
    for (uint32_t i = lane % 8; i < n; i += 8) own += term(elements[i]);
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      const uint64_t bits =
          __shfl_sync(kWarp, uint64_t(__double_as_longlong(own)), (lane & ~7u) | j);
      all += __longlong_as_double((long long)(bits));
    }
    return all;
  }

  // code(bits of an element, its place) returns so many bits. Lanes combine them into words.
  template <class Code>
  __device__ void write(uint32_t bits, uint32_t* out, Code code) const {
    const uint32_t lane = threadIdx.x % 32, sharing = 8 / bits;  // lanes of a word
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row) {
      uint32_t word = 0;
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e)
        word |= code(rows[row].elements[e], S::place(row) + e) << (e * bits);
      word <<= lane % sharing * 4 * bits;
#pragma unroll 1
      for (uint32_t d = 1; d < sharing; d *= 2) word |= __shfl_xor_sync(kWarp, word, d);
      if (n && lane % sharing == 0) out[S::place(row) * bits / 32] = word;
    }
  }
};

// The largest power's exponent field; kNoPower if there is none.
template <int kBlock>
__device__ uint32_t encode_powers(const BlockOf<kBlock>& block, uint64_t key, uint32_t* out) {
  uint32_t top = (block.largest() >> 23) + 1;  // the largest magnitude may be rounded up
  top = top < kNoPower ? top : kNoPower;
  const uint32_t zero = top - 127;  // the exponent of code 0; modulo 2^32
  const uint32_t lowest = top > 127 ? top - 126 : 1;
  const float per_lowest = __uint_as_float((254 - lowest) << 23);
  const Noise noise(key);
  block.write(8, out, [&](uint32_t bits, uint32_t i) {
    const uint32_t a = bits & ~kSignBit, random = noise.at(i) >> 9;
    uint32_t power = ((a + random) >> 23) - zero;  // carries with the mantissa's probability
    if (a >> 23 < lowest) {
      const float share = float(int(random)) * 0x1p-23f;
      power = (share < __fmul_rn(__uint_as_float(a), per_lowest) ? lowest : zero) - zero;
    }
    return (power | (power == 0 ? 0 : bits >> 24 & 0x80)) & 0xff;
  });
  return top;
}

// TernGrad's limit: 2.5 times the root mean square, or the largest magnitude. Follows the engine's
// steps.
template <int kBlock>
__device__ float clipped(const BlockOf<kBlock>& block, float largest) {
  const double limit = 6.25 * block.sum([](uint32_t bits) {
    const double x = double(__uint_as_float(bits));
    return x * x;  // exact
  }) / double(block.n);
  if (!(double(largest) * double(largest) > limit)) return largest;
  double root = largest;
#pragma unroll 1
  for (int i = 0; i < 64; ++i) {
    const double next = 0.5 * (root + limit / root);
    if (next >= root) break;
    root = next;
  }
  return float(root);
}

// The step; NaN if there is none.
template <int kBlock>
__device__ float encode_levels(const BlockOf<kBlock>& block, uint32_t quantizer, uint32_t bits,
                               uint64_t key, uint32_t* out) {
  const uint32_t largest = block.largest();
  const float most = float((1 << (bits - 1)) - 1), smallest = __uint_as_float(kStepBits);
  float limit = __uint_as_float(largest);
  if (quantizer == kTernary) {
    const float clip = clipped(block, limit);
    if (limit > 0) limit = clip;
  }
  float step = __fdiv_rn(limit, most);
  if (!(step >= smallest)) step = smallest;
  const float per_step = __fdiv_rn(1.0f, step);
  const bool nearest = quantizer == kNearestLevel;
  const Noise noise(key);
  block.write(bits, out, [&](uint32_t x, uint32_t i) {
    constexpr float whole = 12582912.0f;  // from here on floats are integers
    float level = __fmul_rn(magnitude_of(x), per_step);
    level = level < most ? level : most;
    const float moved = nearest ? __fadd_rn(level, whole) - whole
                                : __fadd_rn(level, float(int(noise.at(i) >> 8)) * 0x1p-24f);
    const int cut = int(moved < most ? moved : most);
    return uint32_t(x >> 31 ? -cut : cut) & ((1u << bits) - 1);
  });
  const bool coded =
      largest < kInfiniteBits && __fmul_rn(step, most) <= __uint_as_float(kLargestBits);
  return coded ? step : __uint_as_float(kNanBits);
}

struct Two {
  float clear, set;  // of clear bits, of set bits; NaN if there are none
};

template <int kBlock>
__device__ Two encode_two(const BlockOf<kBlock>& block, uint32_t quantizer, uint32_t* out) {
  const bool coded = block.largest() < kInfiniteBits;
  const double all = block.sum([](uint32_t bits) { return double(magnitude_of(bits)); });
  block.write(1, out, [](uint32_t bits, uint32_t) { return bits >> 31; });
  const double n = double(block.n);
  Two two;
  if (quantizer == kSign) {
    two.clear = float(all / n);
    two.set = -two.clear;
  } else {
    const double sum = block.sum([](uint32_t bits) { return double(__uint_as_float(bits)); });
    const uint32_t negatives = block.negatives();
    two.clear = negatives < block.n ? float((all + sum) / 2 / double(block.n - negatives)) : 0;
    two.set = negatives > 0 ? float((sum - all) / 2 / double(negatives)) : 0;
  }
  if (!coded) two.clear = two.set = __uint_as_float(kNanBits);
  return two;
}

// The values of the four elements in a code's lowest bits. known: whether the code is one of c's;
// if not, all values are NaN.
struct Decoder {
  Coding coding;
  uint32_t top;
  Two two;  // or the step

  __device__ Decoder(Coding c, bool known, const uint8_t* heads, uint32_t index)
      : coding(c), top(0), two{0, 0} {
    if (c.quantizer == kPowers)
      top = heads[index];
    else if (has_two(c))
      two = reinterpret_cast<const Two*>(heads)[index];
    else
      two.clear = reinterpret_cast<const float*>(heads)[index];
    if (known) return;
    top = kNoPower;
    two.clear = two.set = __uint_as_float(kNanBits);
  }

  __device__ float value(uint32_t code) const {
    if (coding.quantizer == kPowers) {
      const int power = int(code & 0x7f), exponent = power + int(top) - 127;
      const uint32_t bits = (code & 0x80) << 24 | uint32_t(exponent) << 23;
      return __uint_as_float(top == kNoPower ? kNanBits : power == 0 || exponent <= 0 ? 0 : bits);
    }
    if (has_two(coding)) return code & 1 ? two.set : two.clear;
    const uint32_t unused = 32 - coding.bits;
    return __fmul_rn(float(int(code << unused) >> unused), two.clear);
  }
};

// A block of the tensor plus its residual.
template <int kBlock>
__device__ void add_rest(const Tensor<4>& tensor, const Tensor<4>& rest, uint32_t number) {
#pragma unroll
  for (uint32_t row = 0; row < Shape<4, kBlock>::kRows; ++row) {
    const uint64_t i = uint64_t(number) * kBlock + Shape<4, kBlock>::place(row);
    Vector<4> total = tensor.load(i);
    const Vector<4> kept = rest.load(i);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      total.elements[e] = __float_as_uint(
          __fadd_rn(__uint_as_float(total.elements[e]), __uint_as_float(kept.elements[e])));
    tensor.store(i, total);
  }
}

// Stores the coding error of a block as its residual.
template <int kBlock>
__device__ void keep_rest(const BlockOf<kBlock>& block, const Tensor<4>& rest, uint32_t number,
                          const Decoder& decoder, const uint32_t* words) {
#pragma unroll
  for (uint32_t row = 0; row < Shape<4, kBlock>::kRows; ++row) {
    const uint32_t place = Shape<4, kBlock>::place(row), at = place * decoder.coding.bits;
    const uint32_t word = words[at / 32] >> (at % 32);
    Vector<4> left = block.rows[row];
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      const float sent = decoder.value(word >> (e * decoder.coding.bits));
      left.elements[e] = __float_as_uint(not_sent(__uint_as_float(left.elements[e]), sent));
    }
    rest.store(uint64_t(number) * kBlock + place, left);
  }
}

// rest has no elements if there is no error feedback.
template <int kBlock>
__device__ void encode_blocks(const Tensor<4>& tensor, const Tensor<4>& rest, Coding coding,
                              uint32_t seed, uint32_t who, uint64_t first_block,
                              uint32_t parcel_blocks, uint8_t* parcels) {
  const Parcels<kBlock> form(coding, seed, parcel_blocks);
  const uint64_t of_sum = mixed(uint64_t(seed) << 32 | who);
  for_each_block<kBlock>((tensor.elements() + kBlock - 1) / kBlock, [&](uint32_t number) {
    if (rest.elements()) {
      add_rest<kBlock>(tensor, rest, number);
      __syncwarp();  // lanes read each other's elements
    }
    const BlockOf<kBlock> block(tensor, number);
    uint8_t* const parcel = parcels + number / parcel_blocks * form.stride;
    uint8_t* const heads = parcel + kTileUnit;
    const uint32_t index = number % parcel_blocks;
    uint32_t* const out =
        reinterpret_cast<uint32_t*>(parcel + form.codes + uint64_t(index) * form.block_codes);
    const uint64_t key = mixed(of_sum + first_block + number);
    const bool writes = block.n && threadIdx.x % Shape<4, kBlock>::kLanes == 0;
    if (writes && index == 0) *reinterpret_cast<uint32_t*>(parcel) = form.tag;
    if (coding.quantizer == kPowers) {
      const uint32_t top = encode_powers(block, key, out);
      if (writes) heads[index] = uint8_t(top);
    } else if (has_two(coding)) {
      const Two two = encode_two(block, coding.quantizer, out);
      if (writes) reinterpret_cast<Two*>(heads)[index] = two;
    } else {
      const float step = encode_levels(block, coding.quantizer, coding.bits, key, out);
      if (writes) reinterpret_cast<float*>(heads)[index] = step;
    }
    if (!rest.elements()) return;
    __syncwarp();  // heads and codes are written
    if (block.n) keep_rest(block, rest, number, Decoder(coding, true, heads, index), out);
  });
}

template <int kBlock>
__device__ void decode_blocks(const Tensor<4>& tensor, Coding coding, uint32_t seed, uint32_t count,
                              uint32_t parcel_blocks, const uint8_t* parcels) {
  using S = Shape<4, kBlock>;
  const Parcels<kBlock> form(coding, seed, parcel_blocks);
  for_each_block<kBlock>((tensor.elements() + kBlock - 1) / kBlock, [&](uint32_t number) {
    if (!S::elements_of(number, tensor.elements())) return;
    const uint8_t* parcel = parcels + number / parcel_blocks * form.stride;
    const uint32_t index = number % parcel_blocks;
    Vector<4> rows[S::kRows];
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i, parcel += form.stride) {
      const bool known = *reinterpret_cast<const uint32_t*>(parcel) == form.tag;
      const Decoder decoder(coding, known, parcel + kTileUnit, index);
      const uint32_t* const words = reinterpret_cast<const uint32_t*>(
          parcel + form.codes + uint64_t(index) * form.block_codes);
#pragma unroll
      for (uint32_t row = 0; row < S::kRows; ++row) {
        const uint32_t at = S::place(row) * coding.bits;
        const uint32_t word = words[at / 32] >> (at % 32);
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          const float value = decoder.value(word >> (e * coding.bits));
          const float sum = __fadd_rn(__uint_as_float(rows[row].elements[e]), value);
          rows[row].elements[e] = __float_as_uint(i == 0 ? value : sum);
        }
      }
    }
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row)
      tensor.store(uint64_t(number) * kBlock + S::place(row), rows[row]);
  });
}

}  // namespace kernels
}  // namespace omnihvd
