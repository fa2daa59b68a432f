// Sums of float32 by integers alone, as FPISA makes them in a switch (Yuan et al., NSDI 2022).
//
// A sum is a register of two integers, mantissa x 2^(exponent - 150). A number to add is taken
// apart in the same way: its 24-bit significand, with its sign, occupies the low end of 32 bits,
// which leaves 7 bits of headroom. A sum is aligned when a number is added, and normalised only
// when it is read:
//
//   add                shifts the mantissa with the smaller exponent right to the larger exponent.
//                      If the result would not fit, both are halved first: the sum's exponent grows
//                      by one
//   add_approximately  FPISA-A, which today's switches can do: never shifts the sum's own mantissa.
//                      Shifts a number larger by d <= 7 powers of two left by d; one larger by more
//                      replaces the sum. Additions saturate
//
// Right shifts are arithmetic: they round down. So sums depend on the order of additions. NaN and
// infinities, which the paper does not cover, behave as in IEEE 754.
//
// Pure functions: no state, any thread.
#pragma once

#include <cstdint>

#include "innetwork/fpisa_register.h"
#include "numeric/block_ops.h"

namespace omnihvd::fpisa {

using Register = fpisa_register;
constexpr int32_t kNoNumber = FPISA_NO_NUMBER;  // the exponent of NaN and infinities

Register from_float(float x);
float to_float(Register sum);  // truncated; infinity if it is too large
Register add(Register sum, Register x);
Register add_approximately(Register sum, Register x);  // x as from_float() makes it

// The block operations of float32 with registers as accumulators.
const BlockOps& ops(bool approximate);

}  // namespace omnihvd::fpisa
