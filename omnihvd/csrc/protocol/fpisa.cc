#include "protocol/fpisa.h"

#include <algorithm>
#include <cstring>

#include "protocol/float_at.h"

namespace omnihvd::fpisa {
namespace {

constexpr int kFraction = 23;  // bits of a float32
constexpr int kInfinite = 255;
constexpr uint32_t kHidden = 1u << kFraction;

int32_t shifted_right(int32_t mantissa, int32_t by) { return mantissa >> std::min(by, 31); }

Register with_no_number(Register a, Register b) {
  if (a.exponent != kNoNumber) return b;
  if (b.exponent != kNoNumber || a.mantissa == b.mantissa) return a;
  return {kNoNumber, 0};
}

using Add = Register (*)(Register, Register);

Register load(const void* sums, size_t i) {
  Register sum;
  std::memcpy(&sum, static_cast<const uint8_t*>(sums) + i * sizeof sum, sizeof sum);
  return sum;
}

void store(void* sums, size_t i, Register sum) {
  std::memcpy(static_cast<uint8_t*>(sums) + i * sizeof sum, &sum, sizeof sum);
}

void store_block(void* sums, const void* block, size_t n) {
  for (size_t i = 0; i < n; ++i) store(sums, i, from_float(float_at(block, i)));
}

template <Add add_one>
void add_at(void* sums, size_t i, float x) {
  store(sums, i, add_one(load(sums, i), from_float(x)));
}

template <Add add_one>
void add_block(void* sums, const void* block, size_t n) {
  for (size_t i = 0; i < n; ++i) add_at<add_one>(sums, i, float_at(block, i));
}

// Calls step(i, x) for each non-zero element.
template <class Step>
void each_packed(const uint8_t* packed, size_t n, Step step) {
  const uint8_t* const elements = packed + bitmap_bytes(n);
  size_t count = 0;
  for (size_t i = 0; i < n; ++i)
    if (packed[i / 8] >> (i % 8) & 1) step(i, float_at(elements, count++));
}

void clear(void* sums, size_t n) {
  for (size_t i = 0; i < n; ++i) store(sums, i, Register());
}

void store_packed(void* sums, const uint8_t* packed, size_t n) {
  clear(sums, n);
  each_packed(packed, n, [&](size_t i, float x) { store(sums, i, from_float(x)); });
}

template <Add add_one>
void add_packed(void* sums, const uint8_t* packed, size_t n) {
  each_packed(packed, n, [&](size_t i, float x) { add_at<add_one>(sums, i, x); });
}

void store_listed(void* sums, const uint32_t* offsets, const uint8_t* elements, size_t count,
                  size_t n) {
  clear(sums, n);
  for (size_t i = 0; i < count; ++i) store(sums, offsets[i], from_float(float_at(elements, i)));
}

template <Add add_one>
void add_listed(void* sums, const uint32_t* offsets, const uint8_t* elements, size_t count) {
  for (size_t i = 0; i < count; ++i) add_at<add_one>(sums, offsets[i], float_at(elements, i));
}

// In place, too: a register is read before what lies there is written.
void finish(void* block, const void* sums, size_t n) {
  for (size_t i = 0; i < n; ++i) put_float(block, i, to_float(load(sums, i)));
}

template <Add add_one>
BlockOps made() {
  BlockOps ops = block_ops(DType::f32);
  ops.store = store_block;
  ops.add = add_block<add_one>;
  ops.store_packed = store_packed;
  ops.add_packed = add_packed<add_one>;
  ops.store_listed = store_listed;
  ops.add_listed = add_listed<add_one>;
  ops.finish = finish;
  return ops;
}

}  // namespace

Register from_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int32_t exponent = int32_t(bits >> kFraction & 0xFF);
  const int32_t fraction = int32_t(bits & (kHidden - 1));
  const bool negative = bits >> 31;
  if (exponent == kInfinite) return {kNoNumber, fraction ? 0 : negative ? -1 : 1};
  const int32_t magnitude = exponent ? fraction | int32_t(kHidden) : fraction;
  return {std::max(exponent, 1), negative ? -magnitude : magnitude};
}

float to_float(Register sum) {
  const uint32_t sign = sum.mantissa < 0 ? 1u << 31 : 0;
  uint32_t magnitude = sign ? 0u - uint32_t(sum.mantissa) : uint32_t(sum.mantissa);
  uint32_t bits = 0;
  if (sum.exponent == kNoNumber) {
    bits = magnitude ? uint32_t(kInfinite) << kFraction : 0x7FC00000;
  } else if (magnitude) {
    // The leading bit comes to where a normal number hides it.
    const int32_t right = 31 - __builtin_clz(magnitude) - kFraction;
    int32_t exponent = sum.exponent + right;
    magnitude = right > 0 ? magnitude >> right : magnitude << -right;
    if (exponent < 1) {  // a subnormal number
      magnitude >>= std::min(1 - exponent, 31);
      exponent = 1;
    }
    const int32_t field = magnitude & kHidden ? exponent : 0;
    bits = exponent >= kInfinite ? uint32_t(kInfinite) << kFraction
                                 : uint32_t(field) << kFraction | (magnitude & (kHidden - 1));
  }
  bits |= sign;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

Register add(Register sum, Register x) {
  if (sum.exponent == kNoNumber || x.exponent == kNoNumber) return with_no_number(sum, x);
  const int32_t exponent = std::max(sum.exponent, x.exponent);
  const int32_t a = shifted_right(sum.mantissa, exponent - sum.exponent);
  const int32_t b = shifted_right(x.mantissa, exponent - x.exponent);
  Register result{exponent, 0};
  if (__builtin_add_overflow(a, b, &result.mantissa)) result = {exponent + 1, (a >> 1) + (b >> 1)};
  return result;
}

Register add_approximately(Register sum, Register x) {
  if (sum.exponent == kNoNumber || x.exponent == kNoNumber) return with_no_number(sum, x);
  const int32_t larger = x.exponent - sum.exponent;
  if (larger > kHeadroom) return x;
  const int32_t aligned =
      larger > 0 ? x.mantissa * (1 << larger) : shifted_right(x.mantissa, -larger);
  Register result{sum.exponent, 0};
  if (__builtin_add_overflow(sum.mantissa, aligned, &result.mantissa))
    result.mantissa = aligned < 0 ? INT32_MIN : INT32_MAX;
  return result;
}

const BlockOps& ops(bool approximate) {
  static const BlockOps exact = made<add>(), quick = made<add_approximately>();
  return approximate ? quick : exact;
}

}  // namespace omnihvd::fpisa
