// Accesses the elements of a float32 block in unaligned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace omnihvd {

inline float float_at(const void* block, size_t i) {
  float x;
  std::memcpy(&x, static_cast<const uint8_t*>(block) + i * sizeof x, sizeof x);
  return x;
}

inline void put_float(void* block, size_t i, float x) {
  std::memcpy(static_cast<uint8_t*>(block) + i * sizeof x, &x, sizeof x);
}

}  // namespace omnihvd
