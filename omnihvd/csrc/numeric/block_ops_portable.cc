// Block operations in plain C++, eight elements at a time, so that compilers can vectorise them for
// the baseline CPU.
#include <cstring>
#include <type_traits>

#include "numeric/block_ops_set.h"

namespace omnihvd {
namespace {

template <class T>
T from_bytes(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

struct Scan {
  struct Word {
    uint64_t at[4];
  };
  static constexpr size_t size = sizeof(Word);

  static Word load(const uint8_t* p) { return from_bytes<Word>(p); }
  static Word fill(uint64_t pattern) { return {{pattern, pattern, pattern, pattern}}; }
  static Word either(Word a, Word b) {
    for (int i = 0; i < 4; ++i) a.at[i] |= b.at[i];
    return a;
  }
  static bool any(Word bits, Word pattern) {
    uint64_t hit = 0;
    for (int i = 0; i < 4; ++i) hit |= bits.at[i] & pattern.at[i];
    return hit != 0;
  }
};

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From) && !std::is_pointer_v<From>, "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Must not be, nor compile to, a branch, so that the conversions below vectorise. For the same
// reason bits are signed where that makes no difference: not every baseline CPU can compare or
// narrow vectors of unsigned integers.
int32_t choose(bool condition, int32_t yes, int32_t no) {
  const int32_t mask = -static_cast<int32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

float half_to_float(uint16_t half) {
  const int32_t magnitude = half & 0x7fff;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  const int32_t quiet = choose(magnitude > 0x7c00, 0x400000, 0);
  const int32_t exponent_shift = choose(magnitude < 0x7c00, 112 << 23, 0x70000000);
  const int32_t normal = ((magnitude << 13) + exponent_shift) | quiet;
  const int32_t result = choose(magnitude < 0x400, bit_cast<int32_t>(subnormal), normal);
  return bit_cast<float>(uint32_t{half} >> 15 << 31 | static_cast<uint32_t>(result));
}

uint16_t float_to_half(float value) {
  const int32_t bits = bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  // 0.5 has the last place of a subnormal half, so the addition rounds to it.
  const int32_t subnormal =
      bit_cast<int32_t>(bit_cast<float>(magnitude) + 0.5f) - bit_cast<int32_t>(0.5f);
  const int32_t to_even = 0xfff + (magnitude >> 13 & 1);
  const int32_t normal = (magnitude - (112 << 23) + to_even) >> 13;
  const int32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  int32_t half = choose(magnitude < 113 << 23, subnormal, normal);
  half = choose(magnitude >= 143 << 23, 0x7c00, half);  // 65536 and up
  half = choose(magnitude > 0x7f800000, nan, half);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | half);
}

float bfloat_to_float(uint16_t bfloat) { return bit_cast<float>(uint32_t{bfloat} << 16); }

uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const int32_t rounded = static_cast<int32_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  const int32_t nan = static_cast<int32_t>(bits >> 16 | 0x40);
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffff);
  return static_cast<uint16_t>(choose(magnitude > 0x7f800000, nan, rounded));
}

// T: what the block's elements are stored as, S: the accumulator's type, unsigned for integers.
template <class T, class S, uint64_t magnitude_pattern>
struct Eight {
  struct Block {
    T at[8];
  };
  struct Sum {
    S at[8];
  };
  using One = S;
  static constexpr size_t lanes = 8, size = sizeof(T), sum_size = sizeof(S);
  static constexpr uint64_t magnitude = magnitude_pattern;

  static Block load(const uint8_t* p) { return from_bytes<Block>(p); }
  static void store(uint8_t* p, Block block) { std::memcpy(p, &block, sizeof block); }
  static Sum load_sum(const uint8_t* p) { return from_bytes<Sum>(p); }
  static void store_sum(uint8_t* p, Sum sum) { std::memcpy(p, &sum, sizeof sum); }

  static uint64_t nonzero(Block block) {
    uint8_t flags[8];
    for (int i = 0; i < 8; ++i) flags[i] = (block.at[i] & static_cast<T>(magnitude)) != 0;
    uint64_t bytes;
    std::memcpy(&bytes, flags, sizeof bytes);
    // The multiplication brings the low bits of the eight bytes together in the top byte.
    return bytes * 0x0102040810204080 >> 56;
  }
  static void compress(uint8_t* to, Block block, uint64_t mask) {
    for (; mask != 0; mask &= mask - 1, to += size) {
      std::memcpy(to, &block.at[__builtin_ctzll(mask)], size);
    }
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    Block block = {};
    for (; mask != 0; mask &= mask - 1, from += size) {
      std::memcpy(&block.at[__builtin_ctzll(mask)], from, size);
    }
    return block;
  }
  static Sum add(Sum a, Sum b) {
    for (int i = 0; i < 8; ++i) a.at[i] = static_cast<S>(a.at[i] + b.at[i]);
    return a;
  }
  static Sum add_where(uint64_t mask, Sum a, Sum b) {
    for (; mask != 0; mask &= mask - 1) {
      const int i = __builtin_ctzll(mask);
      a.at[i] = static_cast<S>(a.at[i] + b.at[i]);
    }
    return a;
  }
};

template <class T, class S, uint64_t magnitude>
struct Same : Eight<T, S, magnitude> {
  using typename Eight<T, S, magnitude>::Block;
  using typename Eight<T, S, magnitude>::Sum;
  static Sum widen(Block block) { return bit_cast<Sum>(block); }
};

template <float (*to_float)(uint16_t), uint16_t (*from_float)(float)>
struct Half : Eight<uint16_t, float, 0x7fff7fff7fff7fff> {
  static Sum widen(Block block) {
    Sum sum;
    for (int i = 0; i < 8; ++i) sum.at[i] = to_float(block.at[i]);
    return sum;
  }
  static Block narrow(Sum sum) {
    Block block;
    for (int i = 0; i < 8; ++i) block.at[i] = from_float(sum.at[i]);
    return block;
  }
};

using F16 = Half<half_to_float, float_to_half>;
using BF16 = Half<bfloat_to_float, float_to_bfloat>;
using F32 = Same<uint32_t, float, 0x7fffffff7fffffff>;
using F64 = Same<uint64_t, double, 0x7fffffffffffffff>;
using I8 = Same<uint8_t, uint8_t, ~uint64_t{0}>;
using I32 = Same<uint32_t, uint32_t, ~uint64_t{0}>;
using I64 = Same<uint64_t, uint64_t, ~uint64_t{0}>;

}  // namespace
}  // namespace omnihvd

#include "numeric/block_ops_loops.h"

namespace omnihvd {
constexpr BlockOpsSet portable_block_ops = set_of_ops();
}  // namespace omnihvd
