#include "innetwork/integers.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "innetwork/float_at.h"
#include "numeric/cpu.h"

namespace omnihvd {
namespace {

constexpr int32_t kNaN = 1 << 20, kPlus = 1 << 10, kMinus = 1;

}  // namespace

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

void mark_no_numbers(const void* block, size_t n, void* marks) {
  for (size_t i = 0; i < n; ++i) {
    const float x = float_at(block, i);
    const int32_t mark = std::isfinite(x) ? 0 : std::isnan(x) ? kNaN : x > 0 ? kPlus : kMinus;
    std::memcpy(static_cast<uint8_t*>(marks) + i * sizeof mark, &mark, sizeof mark);
  }
}

void put_no_numbers(const void* marks, size_t n, void* block) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < n; ++i) {
    int32_t mark;
    std::memcpy(&mark, static_cast<const uint8_t*>(marks) + i * sizeof mark, sizeof mark);
    if (mark == 0) continue;
    const bool plus = (mark / kPlus) & kMostMarked, minus = mark & kMostMarked;
    if (mark >= kNaN || plus == minus)
      put_float(block, i, std::numeric_limits<float>::quiet_NaN());
    else
      put_float(block, i, plus ? kInfinity : -kInfinity);
  }
}

}  // namespace omnihvd
