// Multiplies a tensor by a number. As in NCCL, averages are scaled before they are summed, because
// the sum may overflow the type where the average fits.
#pragma once

#include "tensor.cuh"

namespace omnihvd {
namespace kernels {

__device__ inline float float_of_half(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // The exponents' biases differ by 112; subnormal halves become normal by it.
  const float value = __uint_as_float(magnitude << 13) * __uint_as_float(uint32_t(127 + 112) << 23);
  return __uint_as_float(sign | __float_as_uint(value));
}

// Rounds to nearest even, as the functions below do.
__device__ inline uint32_t half_of_float(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // beyond 65504 and a half of its last bit
  if (magnitude < 0x38800000)  // subnormal: in 0.5 + x the last bit is that of a subnormal half
    return sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000);
  return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - (uint32_t(112) << 23)) >> 13;
}

__device__ inline float float_of_bfloat16(uint32_t bits) { return __uint_as_float(bits << 16); }

__device__ inline uint32_t bfloat16_of_float(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <int kWidth>
__device__ typename BitsOf<kWidth>::type scaled(typename BitsOf<kWidth>::type bits, double factor,
                                                uint32_t format) {
  using Bits = typename BitsOf<kWidth>::type;
  if (kWidth == 8) {
    return Bits(__double_as_longlong(__longlong_as_double((long long)(bits)) * factor));
  } else if (kWidth == 4) {
    return Bits(__float_as_uint(__uint_as_float(uint32_t(bits)) * float(factor)));
  } else if (format == kBfloat16) {
    return Bits(bfloat16_of_float(float_of_bfloat16(uint32_t(bits)) * float(factor)));
  }
  return Bits(half_of_float(float_of_half(uint32_t(bits)) * float(factor)));
}

template <int kWidth, uint32_t kThreads>
__device__ void scale_elements(const Tensor<kWidth>& in, const Tensor<kWidth>& out, double factor,
                               uint32_t format) {
  using Vec = Vector<kWidth>;
  const uint64_t step = uint64_t(gridDim.x) * kThreads * Vec::kElements;
  uint64_t i = (uint64_t(blockIdx.x) * kThreads + threadIdx.x) * Vec::kElements;
#pragma unroll 1
  for (; i < in.elements(); i += step) {
    Vec v = in.load(i);
#pragma unroll
    for (int e = 0; e < Vec::kElements; ++e)
      v.elements[e] = scaled<kWidth>(v.elements[e], factor, format);
    out.store(i, v);
  }
}

}  // namespace kernels
}  // namespace omnihvd
