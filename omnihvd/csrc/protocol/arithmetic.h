// The arithmetic of a collective's sums. Part of its Shape; see docs/arithmetic.md.
//
//   floats    the dtype's own
//   integers  float32 as int32 with a shared exponent (innetwork/integers.h)
//   switchml  the same, but every block travels, zero or not: OmniReduce's starting point
//   fpisa     float32 in registers of two integers: innetwork/fpisa.h
//   fpisa_a   the same, approximately
//
// Sums of floats are the engine's. libomnihvd_innetwork makes the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/codec.h"
#include "numeric/dtype.h"

namespace omnihvd {

// The values travel on the wire: never renumber.
enum class ArithmeticKind : uint8_t { floats, integers, switchml, fpisa, fpisa_a };
constexpr const char* kArithmeticNames[] = {"float", "integer", "switchml", "fpisa", "fpisa-a"};
constexpr const char* name_of(ArithmeticKind kind) {
  return kArithmeticNames[static_cast<int>(kind)];
}

// The most bits for which a sum over so many workers fits 32 bits: 2^bits x workers < 2^31.
constexpr uint8_t integer_bits_for(uint32_t workers) {
  uint8_t bits = 30;
  while (bits > 0 && (uint64_t{workers} << bits) >= uint64_t{1} << 31) --bits;
  return bits;
}
constexpr uint8_t kLargestExponent = 254;

// The wire form of a block of integers that is not packed: a byte of these flags; for each element
// an int32, or with kCodes, in contributions under the codec natural, a code of a byte; and then,
// with kNoNumbers, a mark for each element (innetwork/integers.h).
constexpr uint8_t kNoNumbers = 1, kCodes = 2;
constexpr size_t integer_block_bytes(size_t n, uint8_t flags) {
  return 1 + n * (flags & kCodes ? 1 : sizeof(int32_t)) +
         n * (flags & kNoNumbers ? sizeof(int32_t) : 0);
}

struct Arithmetic {
  ArithmeticKind kind = ArithmeticKind::floats;
  uint8_t bits = 0;  // per integer, in integer sums; else 0

  // Does it differ from the dtype's own?
  explicit operator bool() const { return kind != ArithmeticKind::floats; }
  bool integers() const {
    return kind == ArithmeticKind::integers || kind == ArithmeticKind::switchml;
  }
  bool dense() const { return kind == ArithmeticKind::switchml; }
  bool registers() const {
    return kind == ArithmeticKind::fpisa || kind == ArithmeticKind::fpisa_a;
  }
  bool is_valid() const {
    return kind <= ArithmeticKind::fpisa_a && (integers() ? bits >= 1 && bits <= 30 : bits == 0);
  }
  static bool takes(DType dtype) { return dtype == DType::f32; }
  // Does it sum what the codec makes of float32? Powers of two are integers.
  bool admits(const Codec& codec) const {
    return !codec || (integers() && codec.kind == CodecKind::natural);
  }
  bool operator==(const Arithmetic& o) const { return kind == o.kind && bits == o.bits; }

  // The arithmetic for a sum over so many workers.
  static Arithmetic of(ArithmeticKind kind, DType dtype, uint32_t workers) {
    Arithmetic made{takes(dtype) ? kind : ArithmeticKind::floats, 0};
    if (made.integers()) made.bits = integer_bits_for(workers);
    return made;
  }
};

struct BlockOps;
struct BlockRef;

// Pure functions. Blocks are n elements of float32.
struct ArithmeticOps {
  const BlockOps& (*registers)(bool approximate);
  // 1 .. kLargestExponent, over the finite numbers of a block.
  uint8_t (*exponent)(const void* block, size_t n);
  // Writes a block's integers, scaled by that exponent, to `made`, and sets all of `read` but its
  // position. Returns the bytes of `made` that it used. key: if not null, makes codes by it.
  size_t (*to_integers)(const void* block, uint32_t n, uint8_t exponent, Arithmetic arithmetic,
                        const uint64_t* key, uint8_t* made, BlockRef* read);
  void (*from_codes)(const uint8_t* codes, size_t n, void* integers);
  // Writes a sum of integers as floats. zero: the block is zero so far.
  void (*from_integers)(const BlockRef& sum, uint32_t n, Arithmetic arithmetic, bool zero,
                        void* block);
};
void register_arithmetic(const ArithmeticOps& ops);  // which live as long as the process
const ArithmeticOps& arithmetic_ops();               // throws Error if there are none

// How an aggregator adds blocks in the form in which they travel.
const BlockOps& sum_ops(Arithmetic arithmetic, DType dtype);
// Bytes of a register: the aggregator's sum of one element.
constexpr size_t kRegisterBytes = 8;

}  // namespace omnihvd
