#include "innetwork/integers.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "innetwork/float_at.h"
#include "numeric/block_ops.h"
#include "numeric/cpu.h"
#include "protocol/frame.h"

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

size_t integers_of_block(const void* block, uint32_t n, uint8_t exponent, Arithmetic arithmetic,
                         const uint64_t* key, uint8_t* made, BlockRef* read) {
  const BlockOps& ops = block_ops(DType::i32);
  const IntegerOps& to = integer_ops();
  uint8_t* const integers = made + 1;
  const bool numbers =
      key ? to.codes_from_floats(block, n, exponent, arithmetic.bits, *key, integers)
          : to.from_floats(block, n, exponent, arithmetic.bits, integers);
  made[0] = uint8_t((numbers ? 0 : kNoNumbers) | (key ? kCodes : 0));
  const size_t bytes = integer_block_bytes(n, made[0]);
  if (!key && numbers && !arithmetic.dense() &&
      worth_packing(n, ops.count_nonzero(integers, n), sizeof(int32_t))) {
    read->data = made + bytes;
    read->bytes = uint32_t(ops.pack(integers, n, made + bytes));
    read->packed = true;
    return bytes + read->bytes;
  }
  if (!numbers) mark_no_numbers(block, n, made + bytes - n * sizeof(int32_t));
  read->data = made;
  read->bytes = uint32_t(bytes);
  read->coded = true;
  return bytes;
}

void block_of_integers(const BlockRef& sum, uint32_t n, Arithmetic arithmetic, bool zero,
                       void* block) {
  const BlockOps& ops = block_ops(DType::i32);
  const uint8_t* integers = sum.coded ? sum.data + 1 : sum.data;
  if (sum.offsets)
    ops.unlist(sum.offsets, sum.data, sum.bytes / sizeof(int32_t), block, zero ? 0 : n);
  else if (sum.packed)
    ops.unpack(sum.data, n, block);
  if (sum.offsets || sum.packed) integers = static_cast<const uint8_t*>(block);
  integer_ops().to_floats(integers, n, sum.exponent, arithmetic.bits, block);
  if (sum.coded && sum.data[0]) put_no_numbers(integers + n * sizeof(int32_t), n, block);
}

}  // namespace omnihvd
