// A lossless codec for blocks of floats: it uses that their exponents lie close to the block's
// largest.
//
// It rotates an element's bits left by one, so that the exponent comes first and the sign last. The
// first byte (the exponent of float32 and bfloat16; all but three bits of it for float64, three
// bits more for float16) is coded as its distance from the block's largest first byte, in as many
// bits as make the block smallest. First bytes that do not fit, and all other bytes, travel as they
// are. The codec knows nothing of an element but its size: any bits survive.
//
//   largest    u8: the largest first byte
//   bits       u8: per distance, 1 .. 7
//   far        u16: how many distances do not fit
//   others     for each other byte, the lowest first: that byte of all elements
//   distances  one per element, from a byte's lowest bit on; all ones: it does not fit
//   first      the first bytes of those, in order
//
// Pure functions: no state, any thread. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// Smaller blocks are not worth it; larger ones do not occur by default.
constexpr size_t kLosslessLeast = 128;  // bytes
constexpr size_t kLosslessMost = 4096;  // elements
constexpr size_t kLosslessHeader = 4;
constexpr size_t kLosslessSixteenths = 15;  // of a block, at most

// Size of a code that a peer sent, given that `there` bytes are present; 0: no encoder writes this.
size_t lossless_bytes(const uint8_t* code, size_t there, size_t n, size_t element);

}  // namespace omnihvd
