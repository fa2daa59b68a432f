// Block operations with AVX-512 (F, BW, DQ, VL, VBMI2), called only where the CPU has them.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns of its own _mm512_undefined_*
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include "protocol/block_ops_set.h"

namespace omnihvd {
namespace {

struct Scan {
  using Word = __m512i;
  static constexpr size_t size = 64;
  static Word load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Word fill(uint64_t pattern) { return _mm512_set1_epi64(static_cast<long long>(pattern)); }
  static Word either(Word a, Word b) { return _mm512_or_si512(a, b); }
  static bool any(Word bits, Word pattern) { return _mm512_test_epi64_mask(bits, pattern) != 0; }
};

// A zero that the compiler cannot see through. Expanding and compressing into it, rather than with
// zero-masking, avoids a wait for the former content of the destination register, which Zen 5 has
// with zero-masking too: 0.8 ns a vector instead of 2.3 ns for float16's store_packed.
template <class Vector>
Vector fresh_zero() {
  Vector zero = {};
  asm("" : "+v"(zero));
  return zero;
}

// Vectors are compressed in registers and stored whole: compressing stores are slow on some CPUs.
struct Bits512 {
  using Block = __m512i;
  static Block load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store(uint8_t* p, Block v) { _mm512_storeu_si512(p, v); }
};

template <uint64_t pattern>
struct Elements {
  static constexpr uint64_t magnitude = pattern;
};

template <uint64_t pattern>
struct Bits8 : Bits512, Elements<pattern> {
  static constexpr size_t lanes = 64, size = 1;
  static Block add_bits(Block a, Block b) { return _mm512_add_epi8(a, b); }
  static uint64_t nonzero(Block v) { return _mm512_test_epi8_mask(v, Scan::fill(pattern)); }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    store(to, _mm512_mask_compress_epi8(fresh_zero<Block>(), mask, v));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    return _mm512_mask_expand_epi8(fresh_zero<Block>(), mask, load(from));
  }
};

// Half a register, so that the sums fill a whole one.
template <uint64_t pattern>
struct Bits16 : Elements<pattern> {
  using Block = __m256i;
  static constexpr size_t lanes = 16, size = 2;
  static Block load(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
  static void store(uint8_t* p, Block v) { _mm256_storeu_si256((__m256i*)p, v); }
  static uint64_t nonzero(Block v) {
    return _mm256_test_epi16_mask(v, _mm512_castsi512_si256(Scan::fill(pattern)));
  }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    store(to, _mm256_mask_compress_epi16(fresh_zero<Block>(), static_cast<__mmask16>(mask), v));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    return _mm256_mask_expand_epi16(fresh_zero<Block>(), static_cast<__mmask16>(mask), load(from));
  }
};

template <uint64_t pattern>
struct Bits32 : Bits512, Elements<pattern> {
  static constexpr size_t lanes = 16, size = 4;
  static Block add_bits(Block a, Block b) { return _mm512_add_epi32(a, b); }
  static uint64_t nonzero(Block v) { return _mm512_test_epi32_mask(v, Scan::fill(pattern)); }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    store(to, _mm512_mask_compress_epi32(fresh_zero<Block>(), static_cast<__mmask16>(mask), v));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    return _mm512_mask_expand_epi32(fresh_zero<Block>(), static_cast<__mmask16>(mask), load(from));
  }
};

template <uint64_t pattern>
struct Bits64 : Bits512, Elements<pattern> {
  static constexpr size_t lanes = 8, size = 8;
  static Block add_bits(Block a, Block b) { return _mm512_add_epi64(a, b); }
  static uint64_t nonzero(Block v) { return _mm512_test_epi64_mask(v, Scan::fill(pattern)); }
  static void compress(uint8_t* to, Block v, uint64_t mask) {
    store(to, _mm512_mask_compress_epi64(fresh_zero<Block>(), static_cast<__mmask8>(mask), v));
  }
  static Block expand(const uint8_t* from, uint64_t mask) {
    return _mm512_mask_expand_epi64(fresh_zero<Block>(), static_cast<__mmask8>(mask), load(from));
  }
};

struct SumF32 {
  using One = float;
  using Sum = __m512;
  static constexpr size_t sum_size = 4;
  static Sum load_sum(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static void store_sum(uint8_t* p, Sum v) { _mm512_storeu_ps(p, v); }
  static Sum add(Sum a, Sum b) { return _mm512_add_ps(a, b); }
  static Sum add_where(uint64_t mask, Sum a, Sum b) {
    return _mm512_mask_add_ps(a, static_cast<__mmask16>(mask), a, b);
  }
};

struct SumF64 {
  using One = double;
  using Sum = __m512d;
  static constexpr size_t sum_size = 8;
  static Sum load_sum(const uint8_t* p) { return _mm512_loadu_pd(p); }
  static void store_sum(uint8_t* p, Sum v) { _mm512_storeu_pd(p, v); }
  static Sum add(Sum a, Sum b) { return _mm512_add_pd(a, b); }
  static Sum add_where(uint64_t mask, Sum a, Sum b) {
    return _mm512_mask_add_pd(a, static_cast<__mmask8>(mask), a, b);
  }
};

struct F16 : Bits16<0x7fff7fff7fff7fff>, SumF32 {
  static Sum widen(Block v) { return _mm512_cvtph_ps(v); }
  static Block narrow(Sum v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
};

struct BF16 : Bits16<0x7fff7fff7fff7fff>, SumF32 {
  static Sum widen(Block v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
  // Not the instruction of AVX512_BF16: it flushes subnormals to zero.
  static Block narrow(Sum v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i to_even =
        _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, to_even), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
  }
};

struct F32 : Bits32<0x7fffffff7fffffff>, SumF32 {
  static Sum widen(Block v) { return _mm512_castsi512_ps(v); }
};

struct F64 : Bits64<0x7fffffffffffffff>, SumF64 {
  static Sum widen(Block v) { return _mm512_castsi512_pd(v); }
};

// Integers are summed as they are stored, and an absent one is 0.
template <class Bits, class T>
struct Integer : Bits {
  using One = T;
  using Sum = __m512i;
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

#include "protocol/block_ops_loops.h"

namespace omnihvd {
constexpr BlockOpsSet avx512_block_ops = set_of("avx512");
}  // namespace omnihvd
#endif
