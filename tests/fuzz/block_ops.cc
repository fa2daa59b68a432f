// Arithmetic on blocks (numeric/block_ops.h): AVX2 has the bits of portable C++, a packed block
// unpacks to itself, and integers have the sum of their closed form.
#include <cmath>

#include "input.h"
#include "numeric/block_ops_set.h"
#include "numeric/cpu.h"

using namespace omnihvd;
using fuzz::Bytes;

// NaN of any sign and payload is one: IEEE 754 leaves them open.
static Bytes without_nan(const Bytes& block, DType dtype) {
  Bytes all = block;
  const size_t size = size_of(dtype);
  for (size_t at = 0; info_of(dtype).is_float && at < all.size(); at += size) {
    uint64_t bits = 0;
    std::memcpy(&bits, &all[at], size);
    const unsigned mantissa = dtype == DType::f16    ? 10
                              : dtype == DType::bf16 ? 7
                              : dtype == DType::f32  ? 23
                                                     : 52;
    const uint64_t magnitude = bits & ~(uint64_t{1} << (size * 8 - 1));
    const uint64_t infinity = ((uint64_t{1} << (size * 8 - 1 - mantissa)) - 1) << mantissa;
    if (magnitude > infinity) std::memset(&all[at], 0xFF, size);
  }
  return all;
}

static Bytes drawn_block(fuzz::Input& in, size_t n, size_t size) {
  Bytes block(n * size);
  const uint8_t zeros = in.number<uint8_t>();
  for (size_t i = 0; i < n && !in.empty(); ++i)
    if (in.number<uint8_t>() >= zeros) {
      const Bytes element = in.bytes(size);
      std::copy(element.begin(), element.end(), &block[i * size]);
    }
  return block;
}

// All that the operations make of two blocks.
static std::vector<Bytes> results(const BlockOpsSet& set, DType dtype, const Bytes& a,
                                  const Bytes& b, size_t n) {
  const BlockOps& ops = set.of[int(dtype)];
  const size_t size = size_of(dtype);
  const auto content = ops.inspect(a.data(), n);
  const size_t nonzero = ops.count_nonzero(a.data(), n);
  MUST(content.nonzero == (nonzero > 0));
  Bytes packed(bitmap_bytes(n) + nonzero * size), back(n * size);
  MUST(ops.pack(a.data(), n, packed.data()) == packed.size());
  MUST(set.packed_count(packed.data(), n) == nonzero);
  ops.unpack(packed.data(), n, back.data());
  Bytes sum(n * accumulator_size_of(dtype)), of_packed = sum, out(n * size), of_packed_out = out;
  ops.store(sum.data(), b.data(), n);
  ops.add(sum.data(), a.data(), n);
  ops.finish(out.data(), sum.data(), n);
  ops.store(of_packed.data(), b.data(), n);
  ops.add_packed(of_packed.data(), packed.data(), n);
  ops.finish(of_packed_out.data(), of_packed.data(), n);
  for (size_t i = 0; !info_of(dtype).is_float && i < out.size(); i += size) {
    uint64_t x = 0, y = 0, z = 0;
    std::memcpy(&x, &a[i], size);
    std::memcpy(&y, &b[i], size);
    std::memcpy(&z, &out[i], size);
    MUST((x + y - z) << (64 - 8 * size) == 0);
  }
  const uint8_t said[] = {content.nonzero, !content.nonzero && content.negative_zero};
  return {Bytes(said, said + 2), packed, without_nan(back, dtype), without_nan(out, dtype),
          without_nan(of_packed_out, dtype)};
}

FUZZ(in) {
  const auto dtype = DType(in.between(0, kDTypes - 1));
  const size_t n = in.between(1, 260);
  const Bytes a = drawn_block(in, n, size_of(dtype)), b = drawn_block(in, n, size_of(dtype));
  const std::vector<Bytes> portable = results(portable_block_ops, dtype, a, b, n);
#if defined(__x86_64__)
  if (cpu_has_avx2()) {
    const std::vector<Bytes> avx2 = results(avx2_block_ops, dtype, a, b, n);
    for (size_t i = 0; i < avx2.size(); ++i) MUST(avx2[i] == portable[i]);
  }
#endif
}
