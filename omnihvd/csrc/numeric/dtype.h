// The element types of a tensor: one table, from which everything else follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace omnihvd {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// In the order of their wire numbers: append only.
// X(name here, name in NumPy and PyTorch, C++ type, the vectors that add it: block_ops_*.cc)
#define OMNIHVD_DTYPES(X)             \
  X(f16, "float16", Float16, F16)     \
  X(bf16, "bfloat16", BFloat16, BF16) \
  X(f32, "float32", float, F32)       \
  X(f64, "float64", double, F64)      \
  X(i8, "int8", int8_t, I8)           \
  X(u8, "uint8", uint8_t, I8)         \
  X(i32, "int32", int32_t, I32)       \
  X(i64, "int64", int64_t, I64)

#define OMNIHVD_VALUE(dtype, ...) dtype,
enum class DType : uint8_t { OMNIHVD_DTYPES(OMNIHVD_VALUE) };
#undef OMNIHVD_VALUE

struct DTypeInfo {
  const char* name;
  size_t size;
  bool is_float;
};
#define OMNIHVD_INFO(dtype, name, T, vectors) {name, sizeof(T), !std::is_integral_v<T>},
constexpr DTypeInfo kDTypeInfo[] = {OMNIHVD_DTYPES(OMNIHVD_INFO)};
#undef OMNIHVD_INFO
constexpr int kDTypes = sizeof kDTypeInfo / sizeof *kDTypeInfo;

constexpr const DTypeInfo& info_of(DType dtype) { return kDTypeInfo[static_cast<int>(dtype)]; }
constexpr size_t size_of(DType dtype) { return info_of(dtype).size; }
constexpr const char* name_of(DType dtype) { return info_of(dtype).name; }

// Sums of two-byte floats accumulate in f32, all others in their own type.
constexpr size_t accumulator_size_of(DType dtype) {
  return size_of(dtype) == 2 && info_of(dtype).is_float ? sizeof(float) : size_of(dtype);
}

// The dtype of T. An unsigned T without a dtype of its own takes the signed one: their sums are
// equal bit by bit.
template <typename T>
constexpr std::optional<DType> dtype_of() {
  std::optional<DType> found;
#define OMNIHVD_FIND(dtype, name, Type, vectors)                                         \
  if (std::is_same_v<T, Type> ||                                                         \
      (std::is_integral_v<T> && std::is_integral_v<Type> && sizeof(T) == sizeof(Type) && \
       (!found || std::is_signed_v<T> == std::is_signed_v<Type>)))                       \
    found = DType::dtype;
  OMNIHVD_DTYPES(OMNIHVD_FIND)
#undef OMNIHVD_FIND
  return found;
}

}  // namespace omnihvd
