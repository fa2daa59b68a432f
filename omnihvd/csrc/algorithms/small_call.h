// The elements and the dtype of a small sum, in one word. All ranks must have the same.
#pragma once

#include <cstdint>

#include "numeric/dtype.h"

namespace omnihvd {

struct SmallCall {
  uint64_t word = 0;
  SmallCall() = default;
  SmallCall(uint64_t count, DType dtype) : word(count << 8 | uint64_t(dtype)) {}
  explicit SmallCall(uint64_t packed) : word(packed) {}
  uint64_t count() const { return word >> 8; }
  DType dtype() const { return DType(word & 0xFF); }
};

}  // namespace omnihvd
