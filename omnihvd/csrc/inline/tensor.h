// What a worker of an aggregator in the data path sums: blocks of INLINE_ELEMENTS int32.
//
// int32 are summed as they are, and wrap around. Floats become integers of the scale of the largest
// exponent that any worker has in the block, as SwitchML's (protocol/integers.h); those of two
// bytes become float32 before. What is no number is 0 there, and travels behind all blocks, in one
// more for each block that has some: workers count NaN and infinities, element by element. So an
// aggregator adds int32 and nothing else, and no order of additions shows.
#pragma once

#include <cstdint>
#include <memory>

#include "inline/packet.h"
#include "protocol/dtype.h"

namespace omnihvd {

// Blocks that no worker has are left as they are: zeros.
class InlineTensor {
 public:
  virtual ~InlineTensor() = default;
  virtual uint32_t blocks() const = 0;
  // Whether the block is sent. Asked once, in ascending order in each slot.
  virtual bool has(uint32_t block) = 0;
  // Of its largest magnitude, as float32's. Asked once, of each block that is sent.
  virtual uint8_t exponent(uint32_t block) = 0;
  // out, in: INLINE_BLOCK_BYTES. exponent: the largest of all workers who have the block.
  virtual void read(uint32_t block, uint8_t exponent, uint8_t* out) const = 0;
  // In ascending order in each slot.
  virtual void write(uint32_t block, uint8_t exponent, const uint8_t* in) = 0;
};

constexpr bool inline_takes(DType dtype) {
  return dtype == DType::i32 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

struct InlineShape {
  uint64_t count = 0;
  DType dtype = DType::i32;  // one that it takes
  uint32_t workers = 1, slots = 1;
  bool dense = false;  // all blocks are sent, zero or not, as SwitchML does
};

// In place; the data must outlive it.
std::unique_ptr<InlineTensor> make_inline_tensor(void* data, const InlineShape& shape);

}  // namespace omnihvd
