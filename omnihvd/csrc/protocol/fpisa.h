// Sums of float32 by integers alone, as FPISA makes them in a switch (Yuan et al., NSDI 2022).
//
// A sum is a register of two integers, mantissa x 2^(exponent - 150). What is added is taken apart
// alike: its 24 bits of significand, with their sign, lie at the right of 32, which leaves 7 bits
// of headroom. A sum is aligned when something is added, and normalised only when it is read:
//
//   add                the smaller exponent's mantissa is shifted right to the larger exponent.
//   What
//                      would not fit any more is halved before: the sum's exponent grows by one
//   add_approximately  FPISA-A, which today's switches can do: the sum's own mantissa is never
//                      shifted. A number larger by d <= 7 powers of two is shifted left by d; one
//                      larger by more replaces the sum. Additions saturate
//
// Shifts to the right are arithmetic: they round down. So sums depend on the order of additions.
// NaN and infinities, of which the paper says nothing, stay what they are in IEEE 754.
//
// Pure functions: no state, any thread.
#pragma once

#include <cstdint>

#include "protocol/block_ops.h"
#include "protocol/fpisa_register.h"

namespace omnihvd::fpisa {

using Register = fpisa_register;
constexpr int32_t kNoNumber = FPISA_NO_NUMBER;  // its exponent, of NaN and infinities

Register from_float(float x);
float to_float(Register sum);  // truncated; infinity where it is too large
Register add(Register sum, Register x);
Register add_approximately(Register sum, Register x);  // x as from_float() makes it

// Those of float32 whose accumulators are registers.
const BlockOps& ops(bool approximate);

}  // namespace omnihvd::fpisa
