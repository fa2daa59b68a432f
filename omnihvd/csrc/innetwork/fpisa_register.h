// FPISA's registers (fpisa.h). C without loops and calls, and almost without branches, since user
// space and an XDP program share this code. A register is mantissa x 2^(exponent - 150).
#ifndef OMNIHVD_PROTOCOL_FPISA_REGISTER_H
#define OMNIHVD_PROTOCOL_FPISA_REGISTER_H

#include <linux/types.h>

#define FPISA_FUNCTION static inline __attribute__((always_inline))
#define FPISA_NO_NUMBER (1 << 20)
#define FPISA_HEADROOM 7
#define FPISA_FRACTION 23  // bits of a float32
#define FPISA_INFINITE 255
#define FPISA_HIDDEN (1u << FPISA_FRACTION)

struct fpisa_register {
  __s32 exponent;  // biased; FPISA_NO_NUMBER: NaN (mantissa 0) or an infinity (its sign: 1, -1)
  __s32 mantissa;
};

FPISA_FUNCTION __s32 fpisa_shifted(__s32 mantissa, __s32 right) {
  return mantissa >> (right < 31 ? right : 31);
}

FPISA_FUNCTION struct fpisa_register fpisa_register_of(__u32 bits) {
  const __s32 exponent = (__s32)(bits >> FPISA_FRACTION & 0xFF);
  const __s32 fraction = (__s32)(bits & (FPISA_HIDDEN - 1));
  const __s32 magnitude = exponent ? fraction | (__s32)FPISA_HIDDEN : fraction;
  struct fpisa_register made;
  made.exponent = exponent ? exponent : 1;
  made.mantissa = bits >> 31 ? -magnitude : magnitude;
  if (exponent == FPISA_INFINITE) {
    made.exponent = FPISA_NO_NUMBER;
    made.mantissa = fraction ? 0 : bits >> 31 ? -1 : 1;
  }
  return made;
}

// The position of the leading bit; x must not be 0.
FPISA_FUNCTION __s32 fpisa_leading_bit(__u32 x) {
  x |= x >> 1;
  x |= x >> 2;
  x |= x >> 4;
  x |= x >> 8;
  x |= x >> 16;  // as many ones as x has digits
  x -= x >> 1 & 0x55555555;
  x = (x & 0x33333333) + (x >> 2 & 0x33333333);
  x = (x + (x >> 4)) & 0x0F0F0F0F;
  return (__s32)(x * 0x01010101 >> 24) - 1;
}

// Truncates; infinity if it is too large.
FPISA_FUNCTION __u32 fpisa_bits_of(struct fpisa_register sum) {
  const __u32 sign = sum.mantissa < 0 ? 1u << 31 : 0;
  __u32 magnitude = sign ? 0u - (__u32)sum.mantissa : (__u32)sum.mantissa;
  if (sum.exponent == FPISA_NO_NUMBER)
    return magnitude ? sign | (__u32)FPISA_INFINITE << FPISA_FRACTION : 0x7FC00000;
  if (!magnitude) return 0;
  // Moves the leading bit to where a normal number hides it.
  const __s32 right = fpisa_leading_bit(magnitude) - FPISA_FRACTION;
  __s32 exponent = sum.exponent + right;
  magnitude = right > 0 ? magnitude >> right : magnitude << -right;
  if (exponent < 1) {  // a subnormal number
    magnitude >>= 1 - exponent < 31 ? 1 - exponent : 31;
    exponent = 1;
  }
  if (exponent >= FPISA_INFINITE) return sign | (__u32)FPISA_INFINITE << FPISA_FRACTION;
  const __u32 field = magnitude & FPISA_HIDDEN ? (__u32)exponent : 0;
  return sign | field << FPISA_FRACTION | (magnitude & (FPISA_HIDDEN - 1));
}

FPISA_FUNCTION struct fpisa_register fpisa_no_number(struct fpisa_register a,
                                                     struct fpisa_register b) {
  if (a.exponent != FPISA_NO_NUMBER) return b;
  if (b.exponent == FPISA_NO_NUMBER && a.mantissa != b.mantissa) a.mantissa = 0;
  return a;
}

// Did a + b overflow: do both differ in sign from the sum?
FPISA_FUNCTION int fpisa_overflows(__s32 a, __s32 b, __s32 sum) {
  return ((a ^ sum) & (b ^ sum)) < 0;
}

FPISA_FUNCTION struct fpisa_register fpisa_add(struct fpisa_register sum, struct fpisa_register x) {
  if (sum.exponent == FPISA_NO_NUMBER || x.exponent == FPISA_NO_NUMBER)
    return fpisa_no_number(sum, x);
  struct fpisa_register result;
  result.exponent = sum.exponent > x.exponent ? sum.exponent : x.exponent;
  const __s32 a = fpisa_shifted(sum.mantissa, result.exponent - sum.exponent);
  const __s32 b = fpisa_shifted(x.mantissa, result.exponent - x.exponent);
  result.mantissa = (__s32)((__u32)a + (__u32)b);
  if (fpisa_overflows(a, b, result.mantissa)) {
    result.exponent += 1;
    result.mantissa = (a >> 1) + (b >> 1);
  }
  return result;
}

// FPISA-A. x: a register made from a float.
FPISA_FUNCTION struct fpisa_register fpisa_add_approximately(struct fpisa_register sum,
                                                             struct fpisa_register x) {
  if (sum.exponent == FPISA_NO_NUMBER || x.exponent == FPISA_NO_NUMBER)
    return fpisa_no_number(sum, x);
  const __s32 larger = x.exponent - sum.exponent;
  if (larger > FPISA_HEADROOM) return x;
  const __s32 b =
      larger > 0 ? (__s32)((__u32)x.mantissa << larger) : fpisa_shifted(x.mantissa, -larger);
  const __s32 a = sum.mantissa;
  sum.mantissa = (__s32)((__u32)a + (__u32)b);
  if (fpisa_overflows(a, b, sum.mantissa)) sum.mantissa = b < 0 ? -0x7FFFFFFF - 1 : 0x7FFFFFFF;
  return sum;
}

#endif
