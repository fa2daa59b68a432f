// Block floating point: floats as integers with a shared exponent, as SwitchML sums them (Sapio et
// al., NSDI 2021, section 5).
//
// A block's exponent is that of the power of two above its largest magnitude over all workers:
// |x| < 2^(exponent - 126). An integer of `bits` bits is round(x 2^(bits - exponent + 126)), to
// nearest even, so |integer| <= 2^bits; with integer_bits_for() the sum over all workers cannot
// overflow. As scales are powers of two, a number is exact if its last bit is not below the
// scale's.
//
// The sum of N workers' numbers differs from the exact one by at most half a unit of the scale for
// each of them, N 2^(exponent - 127 - bits), and by the rounding of the result to float32.
//
// NaN and infinities are not integers. A block that has some also travels as marks, an int32 for
// each element. Marks of several workers combine in any order with the same result.
//
// Pure functions: no state, any thread. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "protocol/arithmetic.h"

namespace omnihvd {

struct IntegerOps {
  // 1 .. kLargestExponent, over the finite numbers among n floats.
  uint8_t (*exponent)(const void* block, size_t n);
  // Numbers too large for the exponent become the largest integer; NaN and infinities become 0.
  // False: there are NaN or infinities.
  bool (*from_floats)(const void* block, size_t n, uint8_t exponent, uint8_t bits, void* integers);
  // The same as codes, a byte each: the power of two below or above a number, at random by the key
  // and without bias, as natural compression rounds (Horvath et al., 2019); below one unit, 0 or 1.
  bool (*codes_from_floats)(const void* block, size_t n, uint8_t exponent, uint8_t bits,
                            uint64_t key, uint8_t* codes);
  // Any code is an integer: its sign (0x80) and, in 5 bits, k + 1 for 2^k or 0 for 0.
  void (*from_codes)(const uint8_t* codes, size_t n, void* integers);
  // Works in place (block == integers), too.
  void (*to_floats)(const void* integers, size_t n, uint8_t exponent, uint8_t bits, void* block);
};
const IntegerOps& integer_ops();  // the best for this CPU
// For tests: "portable" or "avx2"; null if this CPU lacks it.
const IntegerOps* integer_ops_named(const std::string& implementation);

extern const IntegerOps portable_integer_ops;
#if defined(__x86_64__)
extern const IntegerOps avx2_integer_ops;  // where cpu_has_avx2()
#endif

// Ten bits each count the workers that have NaN, infinity and -infinity. Marks may be added, as
// switches do, or united bit by bit, if a count of some workers is enough.
constexpr uint32_t kMostMarked = (1 << 10) - 1;  // workers, in marks that are added
// mark: writes the marks of a block. put: puts the sums of what is marked among n floats.
void mark_no_numbers(const void* block, size_t n, void* marks);
void put_no_numbers(const void* marks, size_t n, void* block);

// The form in which a block travels, as ArithmeticOps has it.
size_t integers_of_block(const void* block, uint32_t n, uint8_t exponent, Arithmetic arithmetic,
                         const uint64_t* key, uint8_t* made, BlockRef* read);
void block_of_integers(const BlockRef& sum, uint32_t n, Arithmetic arithmetic, bool zero,
                       void* block);

}  // namespace omnihvd
