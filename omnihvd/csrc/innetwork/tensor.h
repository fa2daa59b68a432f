// A worker's tensor for in-network aggregation: blocks of INLINE_ELEMENTS int32.
//
// int32 are summed as they are, and wrap around. Floats become integers scaled by the largest
// exponent that any worker has in the block, as in SwitchML (integers.h); two-byte floats
// are widened to float32 first. NaN and infinities count as 0 there. Workers count them element by
// element and send the counts after all blocks, in one more block for each block that has some. So
// an aggregator adds nothing but int32, and the order of additions does not show. With `natural`,
// floats become powers of two in that scale, and both they and counts, which are powers, travel as
// codes to the aggregator.
#pragma once

#include <cstdint>
#include <memory>

#include "innetwork/packet.h"
#include "numeric/dtype.h"

namespace omnihvd {

// Leaves blocks that no worker has as they are: zeros.
class InlineTensor {
 public:
  virtual ~InlineTensor() = default;
  virtual uint32_t blocks() const = 0;
  // Does this worker send the block? Asked once, in ascending order in each slot.
  virtual bool has(uint32_t block) = 0;
  // The float32 exponent of the block's largest magnitude. Asked once for each block that is sent.
  virtual uint8_t exponent(uint32_t block) = 0;
  // INLINE_BLOCK_BYTES, or INLINE_CODE_BYTES.
  virtual size_t sent_bytes() const { return INLINE_BLOCK_BYTES; }
  // out: sent_bytes(); in: INLINE_BLOCK_BYTES. exponent: the largest of all workers that have the
  // block.
  virtual void read(uint32_t block, uint8_t exponent, uint8_t* out) const = 0;
  // In ascending order in each slot.
  virtual void write(uint32_t block, uint8_t exponent, const uint8_t* in) = 0;
};

constexpr bool inline_takes(DType dtype) {
  return dtype == DType::i32 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

struct InlineShape {
  uint64_t count = 0;
  DType dtype = DType::i32;  // one that in-network aggregation supports
  uint32_t workers = 1, slots = 1;
  bool dense = false;    // sends all blocks, zero or not, as SwitchML does
  bool natural = false;  // floats only: sends codes, drawn by this seed and the worker's rank
  uint32_t seed = 0, rank = 0;
};

// Sums in place; the data must outlive the tensor.
std::unique_ptr<InlineTensor> make_inline_tensor(void* data, const InlineShape& shape);

}  // namespace omnihvd
