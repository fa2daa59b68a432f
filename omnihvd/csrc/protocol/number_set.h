// Sets of numbers in few bits: which blocks of a slot's stream, which elements of blocks.
//
// Both sides know how many numbers there are and below what, so that these alone say how a set is
// written, always in whole bytes:
//   in no byte     all numbers below the range, or none
//   bitmap         a bit for each number of the range
//   Elias-Fano     the low bits of each number, as many as log2(range / count); then a bitmap in
//                  which bit (number >> low bits) + i is set for the i-th number. About half a bit
//                  a number more than the entropy of a random set
// The shortest that applies is taken. Numbers ascend strictly. Bitmaps and low bits begin with the
// lowest bit of a byte, and unused bits are 0. No function keeps state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// range <= 2^32, count <= range.
size_t set_bytes(uint64_t count, uint64_t range);
// `out` has room for set_bytes(), and is 0 there.
void write_set(const uint32_t* numbers, uint64_t count, uint64_t range, uint8_t* out);
// Fills numbers[count] from set_bytes() bytes, of which it trusts none: false when they are not
// what write_set writes.
bool read_set(const uint8_t* in, uint64_t count, uint64_t range, uint32_t* numbers);

// About the bits that each of `count` numbers of a range takes, all together.
uint64_t set_bits(uint64_t count, uint64_t range);

}  // namespace omnihvd
