#include "protocol/tensor.h"

#include <cstring>

namespace omnihvd {

HostTensor::HostTensor(const Layout& layout, const void* in, void* out, uint32_t rank)
    : layout_(layout),
      ops_(block_ops(layout.shape().dtype)),
      to_send_(layout.shape().codec, contribution_coding(layout.shape().codec), rank,
               layout.shape().dtype),
      of_sums_(layout.shape().codec, sum_coding(layout.shape().codec), kSums, layout.shape().dtype),
      in_(static_cast<const uint8_t*>(in)),
      out_(static_cast<uint8_t*>(out)),
      block_bytes_(layout.shape().block_bytes()),
      element_(size_of(layout.shape().dtype)),
      scratch_(size_t(layout.shape().window) * layout.shape().made_bytes()),
      zero_(layout.blocks()) {}

bool HostTensor::nonzero(uint64_t block) {
  const uint32_t n = layout_.elements_of(block);
  const BlockOps::Content content = ops_.inspect(in_ + block * block_bytes_, n);
  if (!content.nonzero && in_ == out_) {
    // In place, a block that no rank sends is not written, yet all ranks must end with the same
    // bits.
    if (content.negative_zero) std::memset(out_ + block * block_bytes_, 0, n * element_);
    zero_[block] = true;
  }
  return content.nonzero;
}

BlockRef HostTensor::read(uint64_t block, uint64_t position) {
  const uint8_t* data = in_ + block * block_bytes_;
  const uint32_t n = layout_.elements_of(block);
  uint8_t* const made = scratch_.data() + scratch_used_;
  if (to_send_.packs(n, ops_.count_nonzero(data, n))) {
    const size_t bytes = ops_.pack(data, n, made);
    scratch_used_ += bytes;
    return {position, made, uint32_t(bytes), true};
  }
  if (const size_t bytes = to_send_.encode(block, data, n, made)) {
    scratch_used_ += bytes;
    return {position, made, uint32_t(bytes), false, nullptr, nullptr, true};
  }
  return {position, data, uint32_t(n * element_), false};
}

BlockRef HostTensor::read_local(uint64_t block, uint64_t position) {
  // The summed values must not depend on the place of the aggregator.
  if (layout_.shape().codec.lossy()) return read(block, position);
  const size_t offset = block * block_bytes_;
  const uint32_t bytes = uint32_t(layout_.elements_of(block) * element_);
  return {position, in_ + offset, bytes, false, out_ + offset};
}

uint8_t HostTensor::exponent(uint64_t block) {
  return arithmetic_ops().exponent(in_ + block * block_bytes_, layout_.elements_of(block));
}

BlockRef HostTensor::read_integers(uint64_t block, uint64_t position, uint8_t exponent) {
  BlockRef read{position, nullptr, 0, false};
  const uint64_t key = layout_.shape().codec ? to_send_.key(block) : 0;
  scratch_used_ += arithmetic_ops().to_integers(
      in_ + block * block_bytes_, layout_.elements_of(block), exponent, layout_.shape().arithmetic,
      layout_.shape().codec ? &key : nullptr, scratch_.data() + scratch_used_, &read);
  return read;
}

void HostTensor::write(uint64_t block, const BlockRef& sum) {
  if (!out_) throw Error("a result holds sums that are another rank's: an aggregator is faulty");
  uint8_t* target = out_ + block * block_bytes_;
  if (const Arithmetic arithmetic = layout_.shape().arithmetic; arithmetic.integers())
    return arithmetic_ops().from_integers(sum, layout_.elements_of(block), arithmetic, zero_[block],
                                          target);
  if (sum.offsets)
    ops_.unlist(sum.offsets, sum.data, sum.bytes / element_, target,
                zero_[block] ? 0 : layout_.elements_of(block));
  else if (sum.packed)
    ops_.unpack(sum.data, layout_.elements_of(block), target);
  else if (sum.coded) {
    if (sum.home != target) of_sums_.decode(sum.data, layout_.elements_of(block), target);
  } else if (sum.data != target)
    std::memcpy(target, sum.data, sum.bytes);
}

void HostTensor::write_zero(uint64_t block) {
  std::memset(out_ + block * block_bytes_, 0, layout_.elements_of(block) * element_);
}

}  // namespace omnihvd
