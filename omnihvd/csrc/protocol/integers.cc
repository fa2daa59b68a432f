#include "protocol/integers.h"

#include <cmath>
#include <limits>

#include "numeric/cpu.h"
#include "numeric/float_at.h"

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

void add_no_numbers(const void* block, size_t n, void* sums) {
  for (size_t i = 0; i < n; ++i) {
    const float x = float_at(block, i);
    if (std::isfinite(x)) continue;
    const float sum = float_at(sums, i) + x;
    // Always the same NaN: which payload survives would depend on the order.
    put_float(sums, i, std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : sum);
  }
}

void put_no_numbers(const void* sums, size_t n, void* block) {
  for (size_t i = 0; i < n; ++i)
    if (const float x = float_at(sums, i); x != 0) put_float(block, i, x);
}

}  // namespace omnihvd
