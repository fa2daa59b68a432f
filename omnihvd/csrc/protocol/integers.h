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
// NaN and infinities are not integers: a block that has some travels as floats, too, and these are
// summed separately, so the order of additions does not show.
//
// Pure functions: no state, any thread. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace omnihvd {

constexpr uint8_t kLargestExponent = 254;

// The most bits for which a sum over so many workers fits 32 bits: 2^bits x workers < 2^31.
constexpr uint8_t integer_bits_for(uint32_t workers) {
  uint8_t bits = 30;
  while (bits > 0 && (uint64_t{workers} << bits) >= uint64_t{1} << 31) --bits;
  return bits;
}

struct IntegerOps {
  // 1 .. kLargestExponent, over the finite numbers among n floats.
  uint8_t (*exponent)(const void* block, size_t n);
  // Numbers too large for the exponent become the largest integer; NaN and infinities become 0.
  // False: there are NaN or infinities.
  bool (*from_floats)(const void* block, size_t n, uint8_t exponent, uint8_t bits, void* integers);
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

// add: adds a block's NaN and infinities to `sums`, which begin as 0, at the same places. put: puts
// these, if there are any, into the sums of n floats.
void add_no_numbers(const void* block, size_t n, void* sums);
void put_no_numbers(const void* sums, size_t n, void* block);

// The wire form of a block that is not packed: a byte, 1 if it has NaN or infinities; one int32 per
// element; and then, in such a block, one float per element, 0 for finite numbers.
constexpr size_t integer_block_bytes(size_t n, bool no_numbers) {
  return 1 + n * sizeof(int32_t) * (no_numbers ? 2 : 1);
}

}  // namespace omnihvd
