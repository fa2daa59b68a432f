// The loops behind codec.h, written for compilers to vectorise: included once by each
// codec_<instruction set>.cc, and compiled for that.
//
// Everything is in an unnamed namespace, and nothing inline from elsewhere is called: were the
// linker to fold a function compiled here with its twin in another file, programs would crash on
// older CPUs. All instruction sets give the same results: no product is fused into a sum.
#pragma once

#include <cstring>

#include "numeric/codec_ops_set.h"
#include "numeric/noise.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "coded blocks are the host's bytes");

namespace omnihvd {
namespace {

constexpr size_t kChunk = 64;
constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
constexpr float kSmallest = 1.17549435e-38f;  // normal number
constexpr float kLargest = 3.40282347e+38f;

// Elements of a block, as numbers and as bits; 0 past its end.
struct Chunk {
  alignas(64) float x[kChunk];
  alignas(64) uint32_t bits[kChunk];
  size_t count;  // in the block
};

// Calls step(first, chunk) for each chunk of a block of n float32.
template <class Step>
void each_chunk(const void* block, size_t n, Step step) {
  const auto* const from = static_cast<const uint8_t*>(block);
  Chunk chunk;
  for (size_t first = 0; first < n; first += kChunk) {
    chunk.count = n - first < kChunk ? n - first : kChunk;
    if (chunk.count < kChunk) std::memset(chunk.x, 0, sizeof chunk.x);
    std::memcpy(chunk.x, from + first * sizeof(float), chunk.count * sizeof(float));
    std::memcpy(chunk.bits, chunk.x, sizeof chunk.x);
    step(first, chunk);
  }
}

// The bits of the largest magnitude; NaN compares largest.
uint32_t largest_magnitude(const void* block, size_t n) {
  int32_t lanes[8] = {};
  each_chunk(block, n, [&](size_t, const Chunk& chunk) {
    for (size_t i = 0; i < kChunk; i += 8)
      for (size_t j = 0; j < 8; ++j) {
        const int32_t a = int32_t(chunk.bits[i + j] & kMagnitude);
        lanes[j] = lanes[j] < a ? a : lanes[j];
      }
  });
  int32_t largest = 0;
  for (const int32_t lane : lanes) largest = largest < lane ? lane : largest;
  return uint32_t(largest);
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float magnitude(float x) { return __builtin_fabsf(x); }

bool is_finite(float x) { return magnitude(x) <= kLargest; }

// ---- powers

bool encode_powers(uint64_t key, const void* block, size_t n, uint8_t* out) {
  // The largest magnitude may be rounded up to the next power.
  const uint32_t top = (largest_magnitude(block, n) >> 23) + 1;
  if (top > 254) return false;
  const uint32_t zero = top - 127;  // the exponent of code 0; modulo 2^32
  const uint32_t lowest = top > 127 ? top - 126 : 1;
  const float per_lowest = float_of((254 - lowest) << 23);  // 1 / the smallest power
  const Noise noise(key);
  *out++ = uint8_t(top);
  each_chunk(block, n, [&](size_t first, const Chunk& chunk) {
    uint32_t codes[kChunk];
    for (size_t i = 0; i < kChunk; ++i) {
      const uint32_t a = chunk.bits[i] & kMagnitude;
      const uint32_t random = noise.at(uint32_t(first + i)) >> 9;
      const uint32_t rounded = (a + random) >> 23;  // carries with the mantissa's probability
      const float share = float(int32_t(random)) * 0x1p-23f;
      const uint32_t up = share < magnitude(chunk.x[i]) * per_lowest ? lowest : zero;
      const uint32_t power = (a >> 23 < lowest ? up : rounded) - zero;
      codes[i] = power | (power == 0 ? 0 : chunk.bits[i] >> 24 & 0x80);
    }
    uint8_t bytes[kChunk];
    for (size_t i = 0; i < kChunk; ++i) bytes[i] = uint8_t(codes[i]);
    std::memcpy(out + first, bytes, chunk.count);
  });
  return true;
}

void decode_powers(const uint8_t* coded, size_t n, void* block) {
  const uint32_t top = *coded++;
  auto* const to = static_cast<uint8_t*>(block);
  const int32_t zero = int32_t(top) - 127;
  for (size_t first = 0; first < n; first += kChunk) {
    const size_t count = n - first < kChunk ? n - first : kChunk;
    uint8_t codes[kChunk] = {};
    alignas(64) uint32_t bits[kChunk];
    std::memcpy(codes, coded + first, count);
    for (size_t i = 0; i < kChunk; ++i) {
      const int32_t power = codes[i] & 0x7F, exponent = power + zero;
      const uint32_t value = uint32_t(codes[i] & 0x80) << 24 | uint32_t(exponent) << 23;
      bits[i] = power == 0 || exponent <= 0 ? 0 : value;
    }
    std::memcpy(to + first * sizeof(float), bits, count * sizeof(float));
  }
}

// ---- levels

// Integers of one byte each to `bits` bits each, and back.
void pack_levels(const int8_t* levels, unsigned bits, size_t count, uint8_t* out) {
  uint8_t packed[kChunk];
  if (bits == 8) {
    std::memcpy(packed, levels, kChunk);
  } else if (bits == 4) {
    for (size_t i = 0; i < kChunk / 2; ++i)
      packed[i] = uint8_t((levels[2 * i] & 15) | (levels[2 * i + 1] & 15) << 4);
  } else {
    for (size_t i = 0; i < kChunk / 4; ++i)
      packed[i] = uint8_t((levels[4 * i] & 3) | (levels[4 * i + 1] & 3) << 2 |
                          (levels[4 * i + 2] & 3) << 4 | (levels[4 * i + 3] & 3) << 6);
  }
  std::memcpy(out, packed, (count * bits + 7) / 8);
}

void unpack_levels(const uint8_t* in, unsigned bits, size_t count, int8_t* levels) {
  uint8_t packed[kChunk] = {};
  std::memcpy(packed, in, (count * bits + 7) / 8);
  if (bits == 8) {
    std::memcpy(levels, packed, kChunk);
  } else if (bits == 4) {
    for (size_t i = 0; i < kChunk / 2; ++i) {
      levels[2 * i] = int8_t(int8_t(packed[i] << 4) >> 4);
      levels[2 * i + 1] = int8_t(int8_t(packed[i]) >> 4);
    }
  } else {
    for (size_t i = 0; i < kChunk / 4; ++i)
      for (size_t j = 0; j < 4; ++j)
        levels[4 * i + j] = int8_t(int8_t(packed[i] << (6 - 2 * j)) >> 6);
  }
}

double sum_of_squares(const void* block, size_t n) {
  double lanes[8] = {};
  each_chunk(block, n, [&](size_t, const Chunk& chunk) {
    for (size_t i = 0; i < kChunk; i += 8)
      for (size_t j = 0; j < 8; ++j) lanes[j] += double(chunk.x[i + j]) * double(chunk.x[i + j]);
  });
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Clips magnitudes above 2.5 times the root mean square: otherwise one outlier would leave nothing
// of all other elements (Wen et al., "TernGrad", NeurIPS 2017).
float clipped(float largest, const void* block, size_t n) {
  const double limit = 6.25 * sum_of_squares(block, n) / double(n);
  if (double(largest) * double(largest) <= limit) return largest;
  double root = largest;  // Newton's method, from above: libm's inline functions stay outside
  for (int i = 0; i < 64; ++i) {
    const double next = 0.5 * (root + limit / root);
    if (next >= root) break;
    root = next;
  }
  return float(root);
}

// share(i): added to the magnitude of element i, in levels, before its fraction is cut off.
template <class Share>
void write_levels(const void* block, size_t n, unsigned bits, float step, uint8_t* out,
                  Share share) {
  const float per_step = 1 / step, most = float((1 << (bits - 1)) - 1);
  each_chunk(block, n, [&](size_t first, const Chunk& chunk) {
    int8_t levels[kChunk];
    for (size_t i = 0; i < kChunk; ++i) {
      float level = magnitude(chunk.x[i]) * per_step;
      level = level < most ? level : most;
      const float moved = share(level, uint32_t(first + i));
      const int32_t cut = int32_t(moved < most ? moved : most);
      levels[i] = int8_t(chunk.bits[i] >> 31 ? -cut : cut);
    }
    pack_levels(levels, bits, chunk.count, out + first * bits / 8);
  });
}

bool encode_levels(Coding coding, uint64_t key, const void* block, size_t n, uint8_t* out) {
  const uint32_t largest = largest_magnitude(block, n);
  if (largest >= kInfinity) return false;
  const float most = float((1 << (coding.bits - 1)) - 1);
  float limit = float_of(largest);
  if (coding.quantizer == Quantizer::ternary && limit > 0) limit = clipped(limit, block, n);
  float step = limit / most;
  if (!(step >= kSmallest)) step = kSmallest;  // its inverse is finite
  if (!is_finite(step * most)) return false;
  std::memcpy(out, &step, sizeof step);
  out += sizeof step;
  if (coding.quantizer == Quantizer::nearest_level) {  // ties to even
    write_levels(block, n, coding.bits, step, out, [](float level, uint32_t) {
      constexpr float whole = 12582912.0f;  // from here on floats are integers
      return (level + whole) - whole;
    });
  } else {
    const Noise noise(key);
    write_levels(block, n, coding.bits, step, out, [&](float level, uint32_t i) {
      return level + float(int32_t(noise.at(i) >> 8)) * 0x1p-24f;
    });
  }
  return true;
}

void decode_levels(unsigned bits, const uint8_t* coded, size_t n, void* block) {
  float step;
  std::memcpy(&step, coded, sizeof step);
  coded += sizeof step;
  auto* const to = static_cast<uint8_t*>(block);
  for (size_t first = 0; first < n; first += kChunk) {
    const size_t count = n - first < kChunk ? n - first : kChunk;
    int8_t levels[kChunk];
    alignas(64) float x[kChunk];
    unpack_levels(coded + first * bits / 8, bits, count, levels);
    for (size_t i = 0; i < kChunk; ++i) x[i] = float(levels[i]) * step;
    std::memcpy(to + first * sizeof(float), x, count * sizeof(float));
  }
}

// ---- one of two values

bool encode_two(Quantizer quantizer, const void* block, size_t n, uint8_t* out) {
  if (largest_magnitude(block, n) >= kInfinity) return false;
  double sums[8] = {}, magnitudes[8] = {};
  uint32_t negative[8] = {};
  uint8_t* const bitmap = out + 2 * sizeof(float);
  each_chunk(block, n, [&](size_t first, const Chunk& chunk) {
    for (size_t i = 0; i < kChunk; i += 8)
      for (size_t j = 0; j < 8; ++j) {
        sums[j] += double(chunk.x[i + j]);
        magnitudes[j] += double(magnitude(chunk.x[i + j]));
        negative[j] += chunk.bits[i + j] >> 31;
      }
    uint8_t below[kChunk];
    for (size_t i = 0; i < kChunk; ++i) below[i] = uint8_t(chunk.bits[i] >> 31);
    uint8_t bits[kChunk / 8];
    for (size_t i = 0; i < kChunk / 8; ++i) {
      uint64_t eight;
      std::memcpy(&eight, below + 8 * i, 8);
      bits[i] = uint8_t((eight * 0x0102040810204080ull) >> 56);
    }
    std::memcpy(bitmap + first / 8, bits, (chunk.count + 7) / 8);
  });
  double sum = 0, all = 0;
  uint32_t negatives = 0;
  for (size_t j = 0; j < 8; ++j) {
    sum += sums[j];
    all += magnitudes[j];
    negatives += negative[j];
  }
  float values[2];  // of clear bits, of set bits
  if (quantizer == Quantizer::sign) {
    values[0] = float(all / double(n));
    values[1] = -values[0];
  } else {
    values[0] = negatives < n ? float((all + sum) / 2 / double(n - negatives)) : 0;
    values[1] = negatives > 0 ? float((sum - all) / 2 / double(negatives)) : 0;
  }
  std::memcpy(out, values, sizeof values);
  return true;
}

void decode_two(const uint8_t* coded, size_t n, void* block) {
  uint32_t values[2];
  std::memcpy(values, coded, sizeof values);
  coded += sizeof values;
  auto* const to = static_cast<uint8_t*>(block);
  for (size_t first = 0; first < n; first += 8) {
    uint32_t bits[8];
    for (uint32_t j = 0; j < 8; ++j) bits[j] = values[coded[first / 8] >> j & 1];
    std::memcpy(to + first * sizeof(float), bits, (n - first < 8 ? n - first : 8) * sizeof(float));
  }
}

// ----

bool encode(Coding coding, uint64_t key, const void* block, size_t n, uint8_t* out) {
  switch (coding.quantizer) {
    case Quantizer::powers: return encode_powers(key, block, n, out);
    case Quantizer::sign:
    case Quantizer::two_means: return encode_two(coding.quantizer, block, n, out);
    default: return encode_levels(coding, key, block, n, out);
  }
}

void decode(Coding coding, const uint8_t* coded, size_t n, void* block) {
  switch (coding.quantizer) {
    case Quantizer::powers: return decode_powers(coded, n, block);
    case Quantizer::sign:
    case Quantizer::two_means: return decode_two(coded, n, block);
    default: return decode_levels(coding.bits, coded, n, block);
  }
}

}  // namespace
}  // namespace omnihvd
