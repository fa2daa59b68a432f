// The arithmetic of a collective's sums. Part of its Shape; see docs/arithmetic.md.
//
//   floats    the dtype's own
//   integers  float32 as int32 with a shared exponent (block floating point): integers.h
//   switchml  the same, but every block travels, zero or not: OmniReduce's starting point
//   fpisa     float32 in registers of two integers: fpisa.h
//   fpisa_a   the same, approximately
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/dtype.h"
#include "protocol/integers.h"

namespace omnihvd {

// The values travel on the wire: never renumber.
enum class ArithmeticKind : uint8_t { floats, integers, switchml, fpisa, fpisa_a };
constexpr const char* kArithmeticNames[] = {"float", "integer", "switchml", "fpisa", "fpisa-a"};
constexpr const char* name_of(ArithmeticKind kind) {
  return kArithmeticNames[static_cast<int>(kind)];
}

struct Arithmetic {
  ArithmeticKind kind = ArithmeticKind::floats;
  uint8_t bits = 0;  // per integer, in integer sums; else 0

  // Does it differ from the dtype's own?
  explicit operator bool() const { return kind != ArithmeticKind::floats; }
  bool integers() const {
    return kind == ArithmeticKind::integers || kind == ArithmeticKind::switchml;
  }
  bool dense() const { return kind == ArithmeticKind::switchml; }
  bool registers() const {
    return kind == ArithmeticKind::fpisa || kind == ArithmeticKind::fpisa_a;
  }
  bool is_valid() const {
    return kind <= ArithmeticKind::fpisa_a && (integers() ? bits >= 1 && bits <= 30 : bits == 0);
  }
  static bool takes(DType dtype) { return dtype == DType::f32; }
  bool operator==(const Arithmetic& o) const { return kind == o.kind && bits == o.bits; }

  // The arithmetic for a sum over so many workers.
  static Arithmetic of(ArithmeticKind kind, DType dtype, uint32_t workers) {
    Arithmetic made{takes(dtype) ? kind : ArithmeticKind::floats, 0};
    if (made.integers()) made.bits = integer_bits_for(workers);
    return made;
  }
};

struct BlockOps;
// How an aggregator adds blocks in the form in which they travel.
const BlockOps& sum_ops(Arithmetic arithmetic, DType dtype);
// Bytes of a register: the aggregator's sum of one element.
constexpr size_t kRegisterBytes = 8;

}  // namespace omnihvd
