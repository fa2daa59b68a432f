// Floats as integers with a shared exponent (innetwork/integers.h): AVX2 has the bits of portable
// C++, and a number comes back within half a unit of the scale.
#include "innetwork/integers.h"

#include <cmath>

#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

FUZZ(in) {
  const size_t n = in.between(1, 260);
  const uint8_t bits = uint8_t(in.between(1, 30));
  const bool any_exponent = in.flag();
  const uint8_t drawn = uint8_t(in.between(1, kLargestExponent));
  std::vector<float> block(n);
  for (float& x : block) x = in.number<float>();
  const IntegerOps& portable = *integer_ops_named("portable");
  const uint8_t exponent = portable.exponent(block.data(), n);
  const uint8_t used = any_exponent ? drawn : exponent;
  std::vector<int32_t> integers(n), theirs(n);
  std::vector<float> back(n), their_back(n);
  const bool numbers = portable.from_floats(block.data(), n, used, bits, integers.data());
  portable.to_floats(integers.data(), n, used, bits, back.data());
  bool finite = true;
  const double unit = std::ldexp(1.0, int(used) - 126 - bits);
  for (size_t i = 0; i < n; ++i) {
    finite &= std::isfinite(block[i]);
    MUST(std::abs(int64_t{integers[i]}) <= int64_t{1} << bits);
    if (!std::isfinite(block[i]) || used < exponent) continue;
    const double exact = integers[i] * unit;  // to_floats() rounds it once
    MUST(std::abs(exact - double(block[i])) <= unit / 2);
    if (std::isfinite(back[i]))
      MUST(std::abs(double(back[i]) - exact) <= std::abs(exact) * 0x1p-23 + 0x1p-149);
  }
  MUST(numbers == finite);
  const uint64_t key = in.number<uint64_t>();
  std::vector<uint8_t> codes(n), their_codes(n);
  MUST(portable.codes_from_floats(block.data(), n, used, bits, key, codes.data()) == finite);
  portable.from_codes(codes.data(), n, integers.data());
  for (size_t i = 0; i < n; ++i) {
    MUST(std::abs(int64_t{integers[i]}) <= int64_t{1} << bits);
    if (!std::isfinite(block[i]) || used < exponent) continue;
    const double units = std::abs(double(block[i])) / unit, made = std::abs(double(integers[i]));
    MUST(made == 0 ? units < 1 : made <= std::max(1.0, 2 * units) && 2 * made > units);
  }
  const IntegerOps* const avx2 = integer_ops_named("avx2");
  if (!avx2) return;
  MUST(avx2->exponent(block.data(), n) == exponent);
  MUST(avx2->from_floats(block.data(), n, used, bits, theirs.data()) == numbers);
  portable.from_floats(block.data(), n, used, bits, integers.data());
  MUST(theirs == integers);
  MUST(avx2->codes_from_floats(block.data(), n, used, bits, key, their_codes.data()) == finite);
  MUST(their_codes == codes);
  portable.from_codes(codes.data(), n, theirs.data());
  std::vector<int32_t> expanded(n);
  avx2->from_codes(codes.data(), n, expanded.data());
  MUST(expanded == theirs);
  avx2->to_floats(integers.data(), n, used, bits, their_back.data());
  MUST(std::memcmp(back.data(), their_back.data(), n * sizeof(float)) == 0);
}
