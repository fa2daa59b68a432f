// A form of a block of floats without loss: their exponents lie close to the block's largest.
//
// An element's bits are rotated left by one, so that its exponent comes first and its sign last.
// The first byte (the exponent of float32 and bfloat16; of float64 all but three bits of it, of
// float16 three bits more) is told by its distance from the largest first byte of the block, in as
// many bits as make the block smallest. What does not fit into these, and all other bytes, travel
// as they are. What is known of an element is its size alone: any bits arrive.
//
//   largest    u8: the largest first byte
//   bits       u8: of a distance, 1 .. 7
//   far        u16: how many distances do not fit
//   others     of each other byte, the lowest first, that of all elements
//   distances  an element each, from a byte's lowest bit on; all ones: it does not fit
//   first      the first bytes of those, in their order
//
// Pure functions: no state, any thread. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// Smaller blocks are not worth it, larger ones are not made by default.
constexpr size_t kLosslessLeast = 128;  // bytes
constexpr size_t kLosslessMost = 4096;  // elements
constexpr size_t kLosslessHeader = 4;
constexpr size_t kLosslessSixteenths = 15;  // of a block, at most

// The bytes of a code that a peer sent, of which so many are there; 0: nothing writes such.
size_t lossless_bytes(const uint8_t* code, size_t there, size_t n, size_t element);

}  // namespace omnihvd
