// A worker's tensor as the protocol sees it: blocks that can be tested, read and written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "numeric/block_coder.h"
#include "numeric/block_ops.h"
#include "protocol/frame.h"
#include "protocol/layout.h"

namespace omnihvd {

// Not thread-safe, but several instances may work on disjoint blocks of the same memory.
class Tensor {
 public:
  virtual ~Tensor() = default;
  // Called once for each block, before any result of this block is written.
  virtual bool nonzero(uint64_t block) = 0;
  // The non-zero blocks, ascending, if they are known: then nobody asks whether a block is. Null:
  // they must be searched for.
  virtual const std::vector<uint64_t>* listed() const { return nullptr; }
  // The block's contribution. Packed data is valid until the next `next_message()`; plain data as
  // long as the tensor.
  virtual BlockRef read(uint64_t block, uint64_t position) = 0;
  // The same for the aggregator of this process, to which nothing is sent: a block need not be
  // packed, and may have a home.
  virtual BlockRef read_local(uint64_t block, uint64_t position) { return read(block, position); }
  // In integer sums, in place of these: the exponent of a block, and its integers scaled by the
  // largest exponent of all workers (arithmetic.h). Valid as long as packed data; never plain, and
  // without a home.
  virtual uint8_t exponent(uint64_t) { return no_integers(), 0; }
  virtual BlockRef read_integers(uint64_t, uint64_t, uint8_t) { return no_integers(), BlockRef(); }
  virtual void next_message() = 0;
  virtual void write(uint64_t block, const BlockRef& sum) = 0;
  // The block's sum is zero: no rank had anything in it. Called only if wants_zeros(): in place,
  // such a block is zero already.
  virtual void write_zero(uint64_t block) = 0;
  virtual bool wants_zeros() const = 0;

 private:
  static void no_integers() { OMNIHVD_INVARIANT(!"no integers"); }
};

// A collective that is made elsewhere has no blocks. Its sum ends once all ranks have begun it, or
// fails as any other.
class NoBlocks final : public Tensor {
 public:
  static std::unique_ptr<Tensor> make(const Layout&) { return std::make_unique<NoBlocks>(); }
  bool nonzero(uint64_t) override { return false; }
  BlockRef read(uint64_t, uint64_t) override {
    OMNIHVD_INVARIANT(!"no blocks");
    return {};
  }
  void next_message() override {}
  void write(uint64_t, const BlockRef&) override {}
  void write_zero(uint64_t) override {}
  bool wants_zeros() const override { return false; }
};

// In host memory, in place (in == out) or not. Owns neither. out: null if another rank gets the
// sums.
class HostTensor : public Tensor {
 public:
  // rank: the key of the random numbers, if the layout has a codec.
  HostTensor(const Layout& layout, const void* in, void* out, uint32_t rank = 0);
  bool nonzero(uint64_t block) override;
  BlockRef read(uint64_t block, uint64_t position) override;
  BlockRef read_local(uint64_t block, uint64_t position) override;
  uint8_t exponent(uint64_t block) override;
  BlockRef read_integers(uint64_t block, uint64_t position, uint8_t exponent) override;
  void next_message() override { scratch_used_ = 0; }
  void write(uint64_t block, const BlockRef& sum) override;
  void write_zero(uint64_t block) override;
  bool wants_zeros() const override { return out_ && in_ != out_; }

 private:
  const Layout& layout_;
  const BlockOps& ops_;
  const BlockCoder to_send_, of_sums_;
  const uint8_t* in_;
  uint8_t* out_;
  size_t block_bytes_;
  size_t element_;
  std::vector<uint8_t> scratch_;  // packed and coded blocks of one message
  size_t scratch_used_ = 0;
  std::vector<bool> zero_;  // [block], in place: found to be zero, and not yet written
};

}  // namespace omnihvd
