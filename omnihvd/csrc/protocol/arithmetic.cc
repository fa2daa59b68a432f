#include "protocol/arithmetic.h"

#include <atomic>

#include "base/error.h"
#include "numeric/block_ops.h"

namespace omnihvd {
namespace {

std::atomic<const ArithmeticOps*> registered{nullptr};

}  // namespace

void register_arithmetic(const ArithmeticOps& ops) { registered = &ops; }

const ArithmeticOps& arithmetic_ops() {
  if (const ArithmeticOps* const ops = registered) return *ops;
  throw Error("only libomnihvd_innetwork sums in this arithmetic, and it is not loaded");
}

const BlockOps& sum_ops(Arithmetic arithmetic, DType dtype) {
  if (arithmetic.integers()) return block_ops(DType::i32);
  if (arithmetic.registers())
    return arithmetic_ops().registers(arithmetic.kind == ArithmeticKind::fpisa_a);
  return block_ops(dtype);
}

}  // namespace omnihvd
