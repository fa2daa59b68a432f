#include "protocol/arithmetic.h"

#include "numeric/block_ops.h"
#include "protocol/fpisa.h"

namespace omnihvd {

static_assert(sizeof(fpisa::Register) == kRegisterBytes);

const BlockOps& sum_ops(Arithmetic arithmetic, DType dtype) {
  if (arithmetic.integers()) return block_ops(DType::i32);
  if (arithmetic.registers()) return fpisa::ops(arithmetic.kind == ArithmeticKind::fpisa_a);
  return block_ops(dtype);
}

}  // namespace omnihvd
