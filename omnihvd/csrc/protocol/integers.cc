#include "protocol/integers.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "protocol/cpu.h"

namespace omnihvd {

const IntegerOps* integer_ops_named(const std::string& implementation) {
#if defined(__x86_64__)
  if (implementation == "avx2" && cpu_has_avx2()) return &avx2_integer_ops;
#endif
  return implementation == "portable" ? &portable_integer_ops : nullptr;
}

const IntegerOps& integer_ops() {
  static const IntegerOps* const avx2 = integer_ops_named("avx2");
  return avx2 ? *avx2 : portable_integer_ops;
}

namespace {

float element(const void* block, size_t i) {
  float x;
  std::memcpy(&x, static_cast<const uint8_t*>(block) + i * sizeof x, sizeof x);
  return x;
}

void put(void* block, size_t i, float x) {
  std::memcpy(static_cast<uint8_t*>(block) + i * sizeof x, &x, sizeof x);
}

}  // namespace

void add_no_numbers(const void* block, size_t n, void* sums) {
  for (size_t i = 0; i < n; ++i) {
    const float x = element(block, i);
    if (std::isfinite(x)) continue;
    const float sum = element(sums, i) + x;
    // One NaN: whose bits would be kept depends on the order.
    put(sums, i, std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : sum);
  }
}

void put_no_numbers(const void* sums, size_t n, void* block) {
  for (size_t i = 0; i < n; ++i)
    if (const float x = element(sums, i); x != 0) put(block, i, x);
}

}  // namespace omnihvd
