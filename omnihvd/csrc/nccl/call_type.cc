#include "nccl/call_type.h"

namespace omnihvd {

std::optional<DType> dtype_of(NcclType type) {
  switch (type) {
    case NcclType::int8: return DType::i8;
    case NcclType::uint8: return DType::u8;
    case NcclType::int32:
    case NcclType::uint32: return DType::i32;
    case NcclType::int64:
    case NcclType::uint64: return DType::i64;
    case NcclType::float16: return DType::f16;
    case NcclType::float32: return DType::f32;
    case NcclType::float64: return DType::f64;
    case NcclType::bfloat16: return DType::bf16;
  }
  return std::nullopt;
}

size_t width_of(NcclType type) {
  const auto dtype = dtype_of(type);
  return dtype ? size_of(*dtype) : 0;
}

Reason refusal_of(const NcclReduction& r) {
  if (r.comm == nullptr || r.in == nullptr || r.out == nullptr) return Reason::invalid;
  if (r.count == 0) return Reason::empty;
  if (r.op != NcclOp::sum && r.op != NcclOp::avg) return Reason::op;
  const auto dtype = dtype_of(r.type);
  if (!dtype) return Reason::dtype;
  if (r.op == NcclOp::avg && !info_of(*dtype).is_float) return Reason::op;
  return Reason::none;
}

}  // namespace omnihvd
