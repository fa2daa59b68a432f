// Block codecs: compressed forms in which blocks travel. All except "lossless" (lossless.h) are
// lossy, and for float32 only. With the lossless codec, sums equal those without a codec bit for
// bit.
//
// With a lossy codec a worker encodes each block that it sends; the aggregator decodes, adds in
// float32, and encodes the sum once; all workers decode the same bits. A block that a codec cannot
// hold (it has NaN or infinity) travels plain, and one that is smaller packed travels packed: both
// exactly.
//
//   codec     contributions                       sums
//   natural   powers of two, at random, 8 bits    the same
//   qsgd      levels, at random, 2, 4 or 8 bits   the same
//   terngrad  -s, 0 or s, at random, 2 bits       levels, at random, 4 bits
//   sign      -s or s, 1 bit                      levels, at random, 4 bits
//   one_bit   the mean of its sign, 1 bit         levels, at random, 4 bits
//   integer   the nearest level, 4 or 8 bits      levels, at random, as many bits
//
// "At random" means stochastic rounding without bias: the expectation is the encoded value. Sums
// are always coded so, since nobody keeps their error (the residual) for the next step.
//
// A coded block of n elements, little endian:
//   powers  the exponent field of the largest power (u8); a byte per element: its sign, and 7 bits
//           c: 0 is zero, 127 the largest power, and any other c the power smaller by 2^(127-c)
//   levels  a step (f32, finite); an integer of `bits` bits per element, two's complement
//   two     two values (f32, finite); one bit per element chooses between them
// Elements begin at a byte's lowest bit.
//
// Pure functions: no state, any thread. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "numeric/dtype.h"

namespace omnihvd {

// The values travel on the wire: never renumber.
enum class CodecKind : uint8_t {
  none = 0,
  natural = 1,
  qsgd = 2,
  terngrad = 3,
  sign = 4,
  one_bit = 5,
  integer = 6,
  lossless = 7
};

// The codec that all ranks of a sum must agree on.
struct Codec {
  CodecKind kind = CodecKind::none;
  uint8_t bits = 0;      // per element, where the kind leaves a choice; else 0
  bool of_sums = false;  // contributions are themselves sums, and coded as sums
  // Seed of the random numbers, which also depend on the rank and the place in the tensor.
  uint32_t seed = 0;

  // Is anything coded?
  explicit operator bool() const { return kind != CodecKind::none; }
  bool lossy() const { return *this && kind != CodecKind::lossless; }
  bool takes(DType dtype) const { return lossy() ? dtype == DType::f32 : info_of(dtype).is_float; }
  bool operator==(const Codec& o) const {
    return kind == o.kind && bits == o.bits && of_sums == o.of_sums && seed == o.seed;
  }

  // The codec for sums that hosts have made of part `index` of a tensor. Block numbers start anew
  // in each part, so this one uses random numbers that nothing else has used.
  Codec of_part(uint32_t index) const {
    return {kind, bits, true, seed + (index + 1) * 0x9E3779B9u};
  }
};

bool is_valid(const Codec& codec);
std::string name_of(const Codec& codec);  // "natural", "qsgd4"
// For log and error messages: "100 float32", "100 float32 by natural".
std::string sum_text(uint64_t count, DType dtype, const Codec& codec, bool scatters = false);
// Appended to two such texts if they do not show the difference; else "".
const char* disagreement(const Codec& one, const Codec& other);

// How a lossy codec codes blocks in one direction. As in kernels/abi.cuh.
enum class Quantizer : uint8_t { powers, random_levels, nearest_level, ternary, sign, two_means };
struct Coding {
  Quantizer quantizer;
  uint8_t bits;  // of an element
};
Coding contribution_coding(const Codec& codec);
Coding sum_coding(const Codec& codec);

size_t coded_bytes(Coding coding, size_t n);
// Can decode() read the coded_bytes() that a peer sent?
bool is_coded(Coding coding, const uint8_t* bytes);

// The key of a block's random numbers. `who`: the rank, or kSums.
constexpr uint32_t kSums = UINT32_MAX;
uint64_t block_key(uint32_t seed, uint32_t who, uint64_t block);

struct CodecOps {
  // Writes coded_bytes(). False: the block cannot be coded, and `out` is undefined. Decoded values,
  // coded again, stay the same, except for a rounding error in the last bit. `ternary` may clip
  // them anew.
  bool (*encode)(Coding coding, uint64_t key, const void* block, size_t n, uint8_t* out);
  void (*decode)(Coding coding, const uint8_t* coded, size_t n, void* block);
  // The lossless codec (lossless.h), for elements of so many bytes. Returns the bytes written; 0:
  // too few are saved, and `out`, which must have room for the block, is undefined.
  size_t (*encode_lossless)(size_t element, const void* block, size_t n, uint8_t* out);
  // False: no encoder writes this. `code` must hold lossless_bytes() of it.
  bool (*decode_lossless)(size_t element, const uint8_t* code, size_t n, void* block);
};
const CodecOps& codec_ops();  // the best for this CPU
// For tests and benchmarks: "portable", "avx2" or "avx512"; null if this CPU lacks it.
const CodecOps* codec_ops_named(const std::string& implementation);

}  // namespace omnihvd
