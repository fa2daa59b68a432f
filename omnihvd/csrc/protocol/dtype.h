// Element types of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// The values travel on the wire: never renumber.
enum class DType : uint8_t {
  f16 = 0,
  bf16 = 1,
  f32 = 2,
  f64 = 3,
  i8 = 4,
  u8 = 5,
  i32 = 6,
  i64 = 7
};
constexpr int kDTypes = 8;

constexpr size_t size_of(DType dtype) {
  constexpr size_t sizes[kDTypes] = {2, 2, 4, 8, 1, 1, 4, 8};
  return sizes[static_cast<int>(dtype)];
}

// Sums of f16 and bf16 accumulate in f32, all others in their own type.
constexpr size_t accumulator_size_of(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 ? 4 : size_of(dtype);
}

constexpr const char* name_of(DType dtype) {
  constexpr const char* names[kDTypes] = {"float16", "bfloat16", "float32", "float64",
                                          "int8",    "uint8",    "int32",   "int64"};
  return names[static_cast<int>(dtype)];
}

}  // namespace omnihvd
