// Sets of numbers in few bits: which blocks of a slot's stream, which elements of blocks.
//
// Both sides know the count and the range. These alone determine the format, always in whole bytes:
//   in no byte     all numbers below the range, or none
//   bitmap         a bit for each number of the range
//   Elias-Fano     the low bits of each number, as many as log2(range / count); then a bitmap with
//                  bit (number >> low bits) + i set for the i-th number. About half a bit per
//                  number more than the entropy of a random set
// The shortest that applies is used. Numbers ascend strictly. Bitmaps and low bits begin with the
// lowest bit of a byte, and unused bits are 0. No function keeps state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// range <= 2^32, count <= range.
size_t set_bytes(uint64_t count, uint64_t range);
// `out` must have room for set_bytes(), and be 0 there.
void write_set(const uint32_t* numbers, uint64_t count, uint64_t range, uint8_t* out);
// Fills numbers[count] from set_bytes() bytes. Trusts none of them: false if write_set does not
// write them.
bool read_set(const uint8_t* in, uint64_t count, uint64_t range, uint32_t* numbers);

// About how many bits `count` numbers of a range take in total.
uint64_t set_bits(uint64_t count, uint64_t range);

}  // namespace omnihvd
