// HostTensor: float32 summed as integers.
#include <cstring>

#include "protocol/tensor.h"

namespace omnihvd {

uint8_t HostTensor::exponent(uint64_t block) {
  return integer_ops().exponent(in_ + block * block_bytes_, layout_.elements_of(block));
}

BlockRef HostTensor::read_integers(uint64_t block, uint64_t position, uint8_t exponent) {
  const uint8_t* const data = in_ + block * block_bytes_;
  const uint32_t n = layout_.elements_of(block);
  const Arithmetic arithmetic = layout_.shape().arithmetic;
  const BlockOps& ops = block_ops(DType::i32);
  uint8_t* const made = scratch_.data() + scratch_used_;
  uint8_t* const integers = made + 1;
  const bool numbers = integer_ops().from_floats(data, n, exponent, arithmetic.bits, integers);
  scratch_used_ += integer_block_bytes(n, !numbers);
  if (numbers && !arithmetic.dense() &&
      worth_packing(n, ops.count_nonzero(integers, n), sizeof(int32_t))) {
    uint8_t* const packed = scratch_.data() + scratch_used_;
    const size_t bytes = ops.pack(integers, n, packed);
    scratch_used_ += bytes;
    return {position, packed, uint32_t(bytes), true};
  }
  made[0] = !numbers;
  if (!numbers) {
    uint8_t* const none = integers + n * sizeof(int32_t);
    std::memset(none, 0, n * sizeof(float));
    add_no_numbers(data, n, none);
  }
  return {position, made, uint32_t(integer_block_bytes(n, !numbers)), false, nullptr,
          nullptr,  true};
}

void HostTensor::write_integers(uint64_t block, const BlockRef& sum) {
  uint8_t* const target = out_ + block * block_bytes_;
  const uint32_t n = layout_.elements_of(block);
  const uint8_t* integers = sum.coded ? sum.data + 1 : sum.data;
  // Moves four-byte elements, whatever they are.
  if (sum.offsets)
    ops_.unlist(sum.offsets, sum.data, sum.bytes / element_, target, zero_[block] ? 0 : n);
  else if (sum.packed)
    ops_.unpack(sum.data, n, target);
  if (sum.offsets || sum.packed) integers = target;
  integer_ops().to_floats(integers, n, sum.exponent, layout_.shape().arithmetic.bits, target);
  if (sum.coded && sum.data[0]) put_no_numbers(integers + n * sizeof(int32_t), n, target);
}

}  // namespace omnihvd
