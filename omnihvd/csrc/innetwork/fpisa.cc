#include "innetwork/fpisa.h"

#include <cstring>

#include "innetwork/float_at.h"
#include "protocol/arithmetic.h"

namespace omnihvd::fpisa {
namespace {

using Add = Register (*)(Register, Register);

Register load(const void* sums, size_t i) {
  Register sum;
  std::memcpy(&sum, static_cast<const uint8_t*>(sums) + i * sizeof sum, sizeof sum);
  return sum;
}

void store(void* sums, size_t i, Register sum) {
  std::memcpy(static_cast<uint8_t*>(sums) + i * sizeof sum, &sum, sizeof sum);
}

void store_block(void* sums, const void* block, size_t n) {
  for (size_t i = 0; i < n; ++i) store(sums, i, from_float(float_at(block, i)));
}

template <Add add_one>
void add_at(void* sums, size_t i, float x) {
  store(sums, i, add_one(load(sums, i), from_float(x)));
}

template <Add add_one>
void add_block(void* sums, const void* block, size_t n) {
  for (size_t i = 0; i < n; ++i) add_at<add_one>(sums, i, float_at(block, i));
}

// Calls step(i, x) for each non-zero element.
template <class Step>
void each_packed(const uint8_t* packed, size_t n, Step step) {
  const uint8_t* const elements = packed + bitmap_bytes(n);
  size_t count = 0;
  for (size_t i = 0; i < n; ++i)
    if (packed[i / 8] >> (i % 8) & 1) step(i, float_at(elements, count++));
}

void clear(void* sums, size_t n) {
  for (size_t i = 0; i < n; ++i) store(sums, i, Register{1, 0});
}

void store_packed(void* sums, const uint8_t* packed, size_t n) {
  clear(sums, n);
  each_packed(packed, n, [&](size_t i, float x) { store(sums, i, from_float(x)); });
}

template <Add add_one>
void add_packed(void* sums, const uint8_t* packed, size_t n) {
  each_packed(packed, n, [&](size_t i, float x) { add_at<add_one>(sums, i, x); });
}

void store_listed(void* sums, const uint32_t* offsets, const uint8_t* elements, size_t count,
                  size_t n) {
  clear(sums, n);
  for (size_t i = 0; i < count; ++i) store(sums, offsets[i], from_float(float_at(elements, i)));
}

template <Add add_one>
void add_listed(void* sums, const uint32_t* offsets, const uint8_t* elements, size_t count) {
  for (size_t i = 0; i < count; ++i) add_at<add_one>(sums, offsets[i], float_at(elements, i));
}

// Works in place, too: it reads a register before it overwrites it.
void finish(void* block, const void* sums, size_t n) {
  for (size_t i = 0; i < n; ++i) put_float(block, i, to_float(load(sums, i)));
}

template <Add add_one>
BlockOps made() {
  BlockOps ops = block_ops(DType::f32);
  ops.store = store_block;
  ops.add = add_block<add_one>;
  ops.store_packed = store_packed;
  ops.add_packed = add_packed<add_one>;
  ops.store_listed = store_listed;
  ops.add_listed = add_listed<add_one>;
  ops.finish = finish;
  return ops;
}

}  // namespace

Register from_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return fpisa_register_of(bits);
}

float to_float(Register sum) {
  const uint32_t bits = fpisa_bits_of(sum);
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

Register add(Register sum, Register x) { return fpisa_add(sum, x); }

Register add_approximately(Register sum, Register x) { return fpisa_add_approximately(sum, x); }

static_assert(sizeof(Register) == kRegisterBytes);

const BlockOps& ops(bool approximate) {
  static const BlockOps exact = made<add>(), quick = made<add_approximately>();
  return approximate ? quick : exact;
}

}  // namespace omnihvd::fpisa
