#include "innetwork/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "innetwork/integers.h"
#include "numeric/block_ops.h"
#include "numeric/codec.h"

namespace omnihvd {
namespace {

// Views the caller's memory as blocks.
class Blocks {
 public:
  Blocks(void* data, const InlineShape& shape)
      : ops(block_ops(shape.dtype)),
        data_(static_cast<uint8_t*>(data)),
        count_(shape.count),
        block_bytes_(INLINE_ELEMENTS * size_of(shape.dtype)),
        dense_(shape.dense) {}

  uint32_t number() const { return uint32_t((count_ + INLINE_ELEMENTS - 1) / INLINE_ELEMENTS); }
  uint32_t elements(uint32_t block) const {
    return uint32_t(
        std::min<uint64_t>(INLINE_ELEMENTS, count_ - uint64_t{block} * INLINE_ELEMENTS));
  }
  uint8_t* at(uint32_t block) const { return data_ + block * block_bytes_; }

  bool are_sent(uint32_t block) {
    const uint32_t n = elements(block);
    const BlockOps::Content content = ops.inspect(at(block), n);
    // A block that no worker sends is never written, yet all workers must end with the same bits.
    if (content.negative_zero && !content.nonzero)
      std::memset(at(block), 0, n * (block_bytes_ / INLINE_ELEMENTS));
    return dense_ || content.nonzero;
  }

  const BlockOps& ops;

 private:
  uint8_t* const data_;
  const uint64_t count_;
  const size_t block_bytes_;
  const bool dense_;
};

void fill_up(uint8_t* out, uint32_t elements) {
  std::memset(out + elements * sizeof(int32_t), 0, INLINE_BLOCK_BYTES - elements * sizeof(int32_t));
}

class InlineIntegers final : public InlineTensor {
 public:
  InlineIntegers(void* data, const InlineShape& shape) : blocks_(data, shape) {}
  uint32_t blocks() const override { return blocks_.number(); }
  bool has(uint32_t block) override { return blocks_.are_sent(block); }
  uint8_t exponent(uint32_t) override { return 0; }
  void read(uint32_t block, uint8_t, uint8_t* out) const override {
    std::memcpy(out, blocks_.at(block), blocks_.elements(block) * sizeof(int32_t));
    fill_up(out, blocks_.elements(block));
  }
  void write(uint32_t block, uint8_t, const uint8_t* in) override {
    std::memcpy(blocks_.at(block), in, blocks_.elements(block) * sizeof(int32_t));
  }

 private:
  Blocks blocks_;
};

// Slots add a block's marks of NaN and infinities as a block of their own.
static_assert(INLINE_WORKERS <= kMostMarked);

class InlineFloats final : public InlineTensor {
 public:
  InlineFloats(void* data, const InlineShape& shape)
      : blocks_(data, shape),
        counts_from_((blocks_.number() + shape.slots - 1) / shape.slots * shape.slots),
        bits_(integer_bits_for(shape.workers)),
        shape_(shape) {}

  size_t sent_bytes() const override {
    return shape_.natural ? INLINE_CODE_BYTES : INLINE_BLOCK_BYTES;
  }

  uint32_t blocks() const override { return counts_from_ + blocks_.number(); }

  bool has(uint32_t block) override {
    if (block >= counts_from_) return no_numbers_.count(block - counts_from_) > 0;
    return block < blocks_.number() && blocks_.are_sent(block);
  }

  uint8_t exponent(uint32_t block) override {
    if (block >= counts_from_) return 0;
    Floats x;
    const uint32_t n = widen(block, x);
    bool numbers = true;
    for (uint32_t i = 0; i < n; ++i) numbers &= std::isfinite(x[i]);
    if (!numbers) mark_no_numbers(x, INLINE_ELEMENTS, no_numbers_[block].of);
    return integer_ops().exponent(x, n);
  }

  void read(uint32_t block, uint8_t exponent, uint8_t* out) const override {
    if (block >= counts_from_) {
      const Counts& counts = no_numbers_.at(block - counts_from_);
      if (shape_.natural)  // each of them is 0 or a power of two
        for (const int32_t count : counts.of) *out++ = uint8_t(__builtin_ffs(count));
      else
        std::memcpy(out, counts.of, INLINE_BLOCK_BYTES);
      return;
    }
    Floats x;
    const uint32_t n = widen(block, x);
    if (shape_.natural) {
      const uint64_t key = block_key(shape_.seed, shape_.rank, block);
      integer_ops().codes_from_floats(x, INLINE_ELEMENTS, exponent, bits_, key, out);
      return;
    }
    integer_ops().from_floats(x, n, exponent, bits_, out);
    fill_up(out, n);
  }

  // A block's counts come after its sums, since one slot holds both.
  void write(uint32_t block, uint8_t exponent, const uint8_t* in) override {
    const bool counts = block >= counts_from_;
    if (counts) block -= counts_from_;
    if (block >= blocks_.number()) return;  // no correct worker sends this
    Floats x;
    const uint32_t n = counts ? widen(block, x) : blocks_.elements(block);
    if (counts)
      put_no_numbers(in, n, &x);
    else
      integer_ops().to_floats(in, n, exponent, bits_, x);
    blocks_.ops.finish(blocks_.at(block), x, n);
  }

 private:
  using Floats = float[INLINE_ELEMENTS];
  struct Counts {
    int32_t of[INLINE_ELEMENTS];
  };

  // Returns how many elements there are, and sets those behind them to 0.
  uint32_t widen(uint32_t block, Floats& x) const {
    const uint32_t n = blocks_.elements(block);
    blocks_.ops.store(x, blocks_.at(block), n);
    std::fill(x + n, x + INLINE_ELEMENTS, 0.0F);
    return n;
  }

  Blocks blocks_;
  const uint32_t counts_from_;  // counts of block b: block counts_from_ + b, of the same slot
  const uint8_t bits_;
  const InlineShape shape_;
  std::unordered_map<uint32_t, Counts> no_numbers_;  // as this worker had them
};

}  // namespace

std::unique_ptr<InlineTensor> make_inline_tensor(void* data, const InlineShape& shape) {
  OMNIHVD_INVARIANT(inline_takes(shape.dtype));
  if (shape.dtype == DType::i32) return std::make_unique<InlineIntegers>(data, shape);
  return std::make_unique<InlineFloats>(data, shape);
}

}  // namespace omnihvd
