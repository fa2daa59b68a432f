// Block operations with AVX2 and F16C, called only where the CPU has them.
#if defined(__x86_64__)
#include <immintrin.h>

#include "numeric/block_ops_set.h"

namespace omnihvd {
namespace {

struct Scan {
  using Word = __m256i;
  static constexpr size_t size = 32;
  static Word load(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
  static Word fill(uint64_t pattern) { return _mm256_set1_epi64x(static_cast<long long>(pattern)); }
  static Word either(Word a, Word b) { return _mm256_or_si256(a, b); }
  static bool any(Word bits, Word pattern) { return !_mm256_testz_si256(bits, pattern); }
};

// AVX2 cannot compress or expand, but it can permute: by these, looked up by a mask of eight lanes.
struct Permutations {
  static constexpr uint64_t absent = 0x80;
  uint64_t compress[256] = {};  // byte k: the position of the k-th set bit
  uint64_t expand[256] = {};    // byte i: how many bits are set below bit i; absent where it is not
  uint8_t twice[16] = {};       // each bit of four doubled

  constexpr Permutations() {
    for (uint64_t mask = 0; mask < 256; ++mask) {
      uint64_t rank = 0;
      for (uint64_t bit = 0; bit < 8; ++bit) {
        const bool set = mask >> bit & 1;
        expand[mask] |= (set ? rank : absent) << (8 * bit);
        if (set) compress[mask] |= bit << (8 * rank++);
      }
    }
    for (unsigned mask = 0; mask < 16; ++mask) {
      for (unsigned bit = 0; bit < 4; ++bit) {
        if (mask >> bit & 1) twice[mask] = static_cast<uint8_t>(twice[mask] | 3u << (2 * bit));
      }
    }
  }
};
constexpr Permutations permutations;

__m128i bytes_from(uint64_t eight) { return _mm_cvtsi64_si128(static_cast<long long>(eight)); }

// Positions of bytes -> positions of both bytes of 16-bit lanes; absent stays absent.
__m128i to_pairs(__m128i positions) {
  const __m128i doubled = _mm_adds_epu8(positions, positions);
  return _mm_adds_epu8(_mm_unpacklo_epi8(doubled, doubled), _mm_set1_epi16(0x0100));
}

// Eight 32-bit lanes.
__m256i compress32(__m256i v, uint8_t mask) {
  const __m128i positions = bytes_from(permutations.compress[mask]);
  return _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(positions));
}
__m256i expand32(__m256i v, uint8_t mask) {
  const __m256i positions = _mm256_cvtepi8_epi32(bytes_from(permutations.expand[mask]));
  const __m256i absent = _mm256_srai_epi32(positions, 31);
  return _mm256_andnot_si256(absent, _mm256_permutevar8x32_epi32(v, positions));
}

template <uint64_t pattern>
struct Elements {
  static constexpr uint64_t magnitude = pattern;
};

template <uint64_t pattern>
struct Bits8 : Elements<pattern> {
  static_assert(pattern == ~uint64_t{0}, "bytes have no sign bit to leave out");
  using Block = __m256i;
  static constexpr size_t lanes = 32, size = 1;
  static Block load(const uint8_t* p) { return Scan::load(p); }
  static void store(uint8_t* p, Block v) { _mm256_storeu_si256((__m256i*)p, v); }
  static Block add_bits(Block a, Block b) { return _mm256_add_epi8(a, b); }
  static uint64_t nonzero(Block v) {
    const __m256i zero = _mm256_cmpeq_epi8(v, _mm256_setzero_si256());
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(zero));
  }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    uint64_t eights[4];
    store(reinterpret_cast<uint8_t*>(eights), v);
    for (int i = 0; i < 4; ++i) {
      const auto bits = static_cast<uint8_t>(mask >> (8 * i));
      const __m128i positions = bytes_from(permutations.compress[bits]);
      _mm_storel_epi64((__m128i*)to, _mm_shuffle_epi8(bytes_from(eights[i]), positions));
      to += __builtin_popcount(bits);
    }
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    __m128i eights[4];
    for (int i = 0; i < 4; ++i) {
      const auto bits = static_cast<uint8_t>(mask >> (8 * i));
      const __m128i positions = bytes_from(permutations.expand[bits]);
      eights[i] = _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i*)from), positions);
      from += __builtin_popcount(bits);
    }
    return _mm256_set_m128i(_mm_unpacklo_epi64(eights[2], eights[3]),
                            _mm_unpacklo_epi64(eights[0], eights[1]));
  }
};

// Half a register, so that the sums fill a whole one.
template <uint64_t pattern>
struct Bits16 : Elements<pattern> {
  using Block = __m128i;
  static constexpr size_t lanes = 8, size = 2;
  static Block load(const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); }
  static void store(uint8_t* p, Block v) { _mm_storeu_si128((__m128i*)p, v); }
  static uint64_t nonzero(Block v) {
    const __m128i bits = _mm_and_si128(v, _mm256_castsi256_si128(Scan::fill(pattern)));
    const __m128i zero = _mm_cmpeq_epi16(bits, _mm_setzero_si128());
    return ~_mm_movemask_epi8(_mm_packs_epi16(zero, zero)) & 0xff;
  }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    store(to, _mm_shuffle_epi8(v, to_pairs(bytes_from(permutations.compress[mask]))));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    return _mm_shuffle_epi8(load(from), to_pairs(bytes_from(permutations.expand[mask])));
  }
};

template <uint64_t pattern>
struct Bits32 : Elements<pattern> {
  using Block = __m256i;
  static constexpr size_t lanes = 8, size = 4;
  static Block load(const uint8_t* p) { return Scan::load(p); }
  static void store(uint8_t* p, Block v) { _mm256_storeu_si256((__m256i*)p, v); }
  static Block add_bits(Block a, Block b) { return _mm256_add_epi32(a, b); }
  static uint64_t nonzero(Block v) {
    const __m256i bits = _mm256_and_si256(v, Scan::fill(pattern));
    const __m256i zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
    return ~_mm256_movemask_ps(_mm256_castsi256_ps(zero)) & 0xff;
  }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    store(to, compress32(v, static_cast<uint8_t>(mask)));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    return expand32(load(from), static_cast<uint8_t>(mask));
  }
};

// Two registers, so that the bitmap advances by whole bytes.
template <uint64_t pattern>
struct Bits64 : Elements<pattern> {
  struct Block {
    __m256i low, high;
  };
  static constexpr size_t lanes = 8, size = 8;
  static Block load(const uint8_t* p) { return {Scan::load(p), Scan::load(p + 32)}; }
  static void store(uint8_t* p, Block v) {
    _mm256_storeu_si256((__m256i*)p, v.low);
    _mm256_storeu_si256((__m256i*)(p + 32), v.high);
  }
  static Block add_bits(Block a, Block b) {
    return {_mm256_add_epi64(a.low, b.low), _mm256_add_epi64(a.high, b.high)};
  }
  static uint64_t zero4(__m256i v) {
    const __m256i bits = _mm256_and_si256(v, Scan::fill(pattern));
    const __m256i zero = _mm256_cmpeq_epi64(bits, _mm256_setzero_si256());
    return static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(zero)));
  }
  static uint64_t nonzero(Block v) { return ~(zero4(v.low) | zero4(v.high) << 4) & 0xff; }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    const uint8_t low = permutations.twice[mask & 15], high = permutations.twice[mask >> 4];
    _mm256_storeu_si256((__m256i*)to, compress32(v.low, low));
    to += __builtin_popcount(low) * 4;
    _mm256_storeu_si256((__m256i*)to, compress32(v.high, high));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    const uint8_t low = permutations.twice[mask & 15], high = permutations.twice[mask >> 4];
    return {expand32(Scan::load(from), low),
            expand32(Scan::load(from + __builtin_popcount(low) * 4), high)};
  }
};

struct SumF32 {
  using One = float;
  using Sum = __m256;
  static constexpr size_t sum_size = 4;
  static Sum load_sum(const uint8_t* p) { return _mm256_loadu_ps((const float*)p); }
  static void store_sum(uint8_t* p, Sum v) { _mm256_storeu_ps((float*)p, v); }
  static Sum add(Sum a, Sum b) { return _mm256_add_ps(a, b); }
  static Sum add_where(uint64_t mask, Sum a, Sum b) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), lane);
    return _mm256_blendv_ps(a, add(a, b), _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lane)));
  }
};

struct SumF64 {
  using One = double;
  struct Sum {
    __m256d low, high;
  };
  static constexpr size_t sum_size = 8;
  static Sum load_sum(const uint8_t* p) {
    return {_mm256_loadu_pd((const double*)p), _mm256_loadu_pd((const double*)p + 4)};
  }
  static void store_sum(uint8_t* p, Sum v) {
    _mm256_storeu_pd((double*)p, v.low);
    _mm256_storeu_pd((double*)p + 4, v.high);
  }
  static Sum add(Sum a, Sum b) {
    return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
  }
  static Sum add_where(uint64_t mask, Sum a, Sum b) {
    const Sum sum = add(a, b);
    return {blend(mask, a.low, sum.low), blend(mask >> 4, a.high, sum.high)};
  }
  static __m256d blend(uint64_t mask, __m256d a, __m256d b) {
    const __m256i lane = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i bits = _mm256_and_si256(Scan::fill(mask), lane);
    return _mm256_blendv_pd(a, b, _mm256_castsi256_pd(_mm256_cmpeq_epi64(bits, lane)));
  }
};

struct F16 : Bits16<0x7fff7fff7fff7fff>, SumF32 {
  static Sum widen(Block v) { return _mm256_cvtph_ps(v); }
  static Block narrow(Sum v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
};

struct BF16 : Bits16<0x7fff7fff7fff7fff>, SumF32 {
  static Sum widen(Block v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
  static Block narrow(Sum v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i to_even =
        _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, to_even), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }
};

struct F32 : Bits32<0x7fffffff7fffffff>, SumF32 {
  static Sum widen(Block v) { return _mm256_castsi256_ps(v); }
};

struct F64 : Bits64<0x7fffffffffffffff>, SumF64 {
  static Sum widen(Block v) { return {_mm256_castsi256_pd(v.low), _mm256_castsi256_pd(v.high)}; }
};

// Integers are summed in their stored type; an absent element counts as 0.
template <class Bits, class T>
struct Integer : Bits {
  using One = T;
  using Sum = typename Bits::Block;
  static constexpr size_t sum_size = Bits::size;
  static Sum load_sum(const uint8_t* p) { return Bits::load(p); }
  static void store_sum(uint8_t* p, Sum v) { Bits::store(p, v); }
  static Sum widen(Sum v) { return v; }
  static Sum add(Sum a, Sum b) { return Bits::add_bits(a, b); }
  static Sum add_where(uint64_t, Sum a, Sum b) { return Bits::add_bits(a, b); }
};

using I8 = Integer<Bits8<~uint64_t{0}>, uint8_t>;
using I32 = Integer<Bits32<~uint64_t{0}>, uint32_t>;
using I64 = Integer<Bits64<~uint64_t{0}>, uint64_t>;

}  // namespace
}  // namespace omnihvd

#include "numeric/block_ops_loops.h"

namespace omnihvd {
constexpr BlockOpsSet avx2_block_ops = set_of_ops();
}  // namespace omnihvd
#endif
