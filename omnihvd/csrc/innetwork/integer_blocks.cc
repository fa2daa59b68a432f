// The form in which blocks of integers travel (protocol/arithmetic.h).
#include "innetwork/integers.h"
#include "numeric/block_ops.h"
#include "protocol/frame.h"

namespace omnihvd {

size_t integers_of_block(const void* block, uint32_t n, uint8_t exponent, Arithmetic arithmetic,
                         uint8_t* made, BlockRef* read) {
  const BlockOps& ops = block_ops(DType::i32);
  uint8_t* const integers = made + 1;
  const bool numbers = integer_ops().from_floats(block, n, exponent, arithmetic.bits, integers);
  const size_t bytes = integer_block_bytes(n, !numbers);
  if (numbers && !arithmetic.dense() &&
      worth_packing(n, ops.count_nonzero(integers, n), sizeof(int32_t))) {
    read->data = made + bytes;
    read->bytes = uint32_t(ops.pack(integers, n, made + bytes));
    read->packed = true;
    return bytes + read->bytes;
  }
  made[0] = !numbers;
  if (!numbers) mark_no_numbers(block, n, integers + n * sizeof(int32_t));
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
