// The loops behind integers.h, written for compilers to vectorise: included once by each
// integers_<instruction set>.cc, and compiled for that. Everything is in an unnamed namespace, and
// nothing inline from elsewhere is called (codec_loops.h). All instruction sets give the same
// results.
#pragma once

#include <cstring>

#include "innetwork/integers.h"
#include "numeric/noise.h"

namespace omnihvd {
namespace {

constexpr size_t kAtOnce = 64;
constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

struct Floats {
  alignas(64) float x[kAtOnce];
  alignas(64) uint32_t bits[kAtOnce];
};

// Calls step(first, floats, count) for each part of a block; elements past its end are 0.
template <class Step>
void each_part(const void* block, size_t n, Step step) {
  const auto* const from = static_cast<const uint8_t*>(block);
  Floats part;
  for (size_t first = 0; first < n; first += kAtOnce) {
    const size_t count = n - first < kAtOnce ? n - first : kAtOnce;
    if (count < kAtOnce) std::memset(part.x, 0, sizeof part.x);
    std::memcpy(part.x, from + first * sizeof(float), count * sizeof(float));
    std::memcpy(part.bits, part.x, sizeof part.x);
    step(first, part, count);
  }
}

uint8_t exponent(const void* block, size_t n) {
  int32_t lanes[8] = {};
  each_part(block, n, [&](size_t, const Floats& part, size_t) {
    for (size_t i = 0; i < kAtOnce; i += 8)
      for (size_t j = 0; j < 8; ++j) {
        const int32_t magnitude = int32_t(part.bits[i + j] & kMagnitude);
        const int32_t number = magnitude < int32_t(kInfinity) ? magnitude : 0;
        lanes[j] = number > lanes[j] ? number : lanes[j];
      }
  });
  int32_t largest = 0;
  for (const int32_t lane : lanes) largest = lane > largest ? lane : largest;
  return uint8_t(largest >> 23 ? largest >> 23 : 1);
}

// 2^power as a product of two floats: each is representable even if the product is not. (A product
// by both is rounded once: if the first product is too small for a normal number, the second is 0.)
struct Scale {
  float first, second;
  explicit Scale(int power)
      : first(power_of_two(power / 2)), second(power_of_two(power - power / 2)) {}
  static float power_of_two(int power) {
    const uint32_t bits = uint32_t(power + 127) << 23;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
};

int scale_of(uint8_t exponent, uint8_t bits) { return int(bits) - int(exponent) + 126; }

bool from_floats(const void* block, size_t n, uint8_t exponent, uint8_t bits, void* integers) {
  const Scale scale(scale_of(exponent, bits));
  const float most = Scale::power_of_two(bits);
  constexpr float kWhole = 8388608;  // 2^23: no float from there on has a fraction
  uint32_t none = 0;
  each_part(block, n, [&](size_t first, const Floats& part, size_t count) {
    alignas(64) int32_t out[kAtOnce];
    for (size_t i = 0; i < kAtOnce; ++i) {
      const uint32_t magnitude_bits = part.bits[i] & kMagnitude;
      const bool number = magnitude_bits < kInfinity;
      none |= number ? 0u : 1u;
      const float x = part.x[i] * scale.first * scale.second;
      float magnitude = x < 0 ? -x : x;
      const float rounded = magnitude + kWhole - kWhole;  // to nearest even
      magnitude = magnitude < kWhole ? rounded : magnitude;
      magnitude = magnitude < most ? magnitude : most;  // NaN, too
      const int32_t integer = int32_t(magnitude);
      out[i] = number ? x < 0 ? -integer : integer : 0;
    }
    std::memcpy(static_cast<uint8_t*>(integers) + first * sizeof out[0], out,
                count * sizeof out[0]);
  });
  return none == 0;
}

bool codes_from_floats(const void* block, size_t n, uint8_t exponent, uint8_t bits, uint64_t key,
                       uint8_t* codes) {
  const Scale scale(scale_of(exponent, bits));
  const Noise noise(key);
  constexpr uint32_t kOne = 127u << 23;  // a float's bits
  uint32_t none = 0;
  each_part(block, n, [&](size_t first, const Floats& part, size_t count) {
    alignas(64) float units[kAtOnce];
    alignas(64) uint32_t of[kAtOnce];
    uint8_t out[kAtOnce];
    for (size_t i = 0; i < kAtOnce; ++i) units[i] = part.x[i] * scale.first * scale.second;
    std::memcpy(of, units, sizeof of);
    for (size_t i = 0; i < kAtOnce; ++i) {
      const bool number = (part.bits[i] & kMagnitude) < kInfinity;
      none |= number ? 0u : 1u;
      const uint32_t random = noise.at(uint32_t(first + i)) >> 9;
      const uint32_t magnitude = of[i] & kMagnitude;
      const float share = units[i] < 0 ? -units[i] : units[i];
      const uint32_t one = float(int32_t(random)) * 0x1p-23f < share ? 1 : 0;
      const uint32_t power = ((magnitude + random) >> 23) - 126;  // carries as often as is fair
      const uint32_t fits = power < bits + 1u ? power : bits + 1u;
      const uint32_t code = !number ? 0 : magnitude < kOne ? one : fits;
      of[i] = code | (code == 0 ? 0 : part.bits[i] >> 24 & 0x80);
    }
    for (size_t i = 0; i < kAtOnce; ++i) out[i] = uint8_t(of[i]);
    std::memcpy(codes + first, out, count);
  });
  return none == 0;
}

void from_codes(const uint8_t* codes, size_t n, void* integers) {
  auto* const to = static_cast<uint8_t*>(integers);
  for (size_t i = 0; i < n; ++i) {
    const int32_t magnitude = int32_t(1u << (codes[i] & 31) >> 1);
    const int32_t integer = codes[i] & 0x80 ? -magnitude : magnitude;
    std::memcpy(to + i * sizeof integer, &integer, sizeof integer);
  }
}

void to_floats(const void* integers, size_t n, uint8_t exponent, uint8_t bits, void* block) {
  const Scale scale(-scale_of(exponent, bits));
  for (size_t first = 0; first < n; first += kAtOnce) {
    const size_t count = n - first < kAtOnce ? n - first : kAtOnce;
    alignas(64) int32_t in[kAtOnce];
    alignas(64) float out[kAtOnce];
    if (count < kAtOnce) std::memset(in, 0, sizeof in);
    std::memcpy(in, static_cast<const uint8_t*>(integers) + first * sizeof in[0],
                count * sizeof in[0]);
    for (size_t i = 0; i < kAtOnce; ++i) out[i] = float(in[i]) * scale.first * scale.second;
    std::memcpy(static_cast<uint8_t*>(block) + first * sizeof out[0], out, count * sizeof out[0]);
  }
}

}  // namespace
}  // namespace omnihvd
