#include "numeric/lossless.h"

namespace omnihvd {

size_t lossless_bytes(const uint8_t* code, size_t there, size_t n, size_t element) {
  if (there < kLosslessHeader || n > kLosslessMost || n * element < kLosslessLeast) return 0;
  const size_t bits = code[1], far = code[2] | size_t{code[3]} << 8;
  const size_t bytes = kLosslessHeader + n * (element - 1) + (n * bits + 7) / 8 + far;
  return bits < 1 || bits > 7 || bytes > n * element * kLosslessSixteenths / 16 ? 0 : bytes;
}

}  // namespace omnihvd
