#include "algorithms/block_union.h"

#include <algorithm>
#include <cstring>

#include "numeric/block_ops.h"

namespace omnihvd {

void BlockUnion::find(const void* in, void* out, uint64_t count, DType dtype, uint32_t block_size) {
  in_ = static_cast<const uint8_t*>(in);
  out_ = static_cast<uint8_t*>(out);
  count_ = count;
  element_ = size_of(dtype);
  block_bytes_ = block_size * element_;
  blocks_ = (count + block_size - 1) / block_size;
  bits_.assign((blocks_ + 7) / 8, 0);
  const BlockOps& ops = block_ops(dtype);
  for (uint64_t block = 0; block < blocks_; ++block) {
    const uint8_t* const data = in_ + block * block_bytes_;
    const BlockOps::Content content = ops.inspect(data, bytes_of(block) / element_);
    bits_[block / 8] |= uint8_t(content.nonzero << (block % 8));
    if (!content.nonzero && content.negative_zero && in_ == out_)
      std::memset(out_ + block * block_bytes_, 0, bytes_of(block));
  }
}

uint32_t BlockUnion::bytes_of(uint64_t block) const {
  return uint32_t(std::min<uint64_t>(block_bytes_, count_ * element_ - block * block_bytes_));
}

template <typename Visit>
void BlockUnion::for_each_marked(Visit visit) const {
  for (size_t at = 0; at < bits_.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bits_.data() + at, std::min<size_t>(8, bits_.size() - at));
    for (; word; word &= word - 1) visit(at * 8 + uint64_t(__builtin_ctzll(word)));
  }
}

uint64_t BlockUnion::marked() const {
  uint64_t number = 0;
  for (const uint8_t byte : bits_) number += uint64_t(__builtin_popcount(byte));
  return number;
}

uint64_t BlockUnion::elements() const {
  uint64_t bytes = 0;
  for_each_marked([&](uint64_t block) { bytes += bytes_of(block); });
  return bytes / element_;
}

uint8_t* BlockUnion::compact() {
  const size_t bytes = elements() * element_;
  if (bytes > capacity_ || bytes < capacity_ / 8) {
    buffer_.reset();  // frees first, so that there are never two
    buffer_.reset(new uint8_t[bytes]);
    capacity_ = bytes;
  }
  uint8_t* at = buffer_.get();
  for_each_marked([&](uint64_t block) {
    std::memcpy(at, in_ + block * block_bytes_, bytes_of(block));
    at += bytes_of(block);
  });
  return buffer_.get();
}

void BlockUnion::scatter() {
  const uint8_t* at = buffer_.get();
  uint64_t next = 0;
  const auto clear_up_to = [&](uint64_t block) {
    if (in_ != out_ && next < block)
      std::memset(out_ + next * block_bytes_, 0,
                  std::min(block * block_bytes_, count_ * element_) - next * block_bytes_);
    next = block + 1;
  };
  for_each_marked([&](uint64_t block) {
    clear_up_to(block);
    std::memcpy(out_ + block * block_bytes_, at, bytes_of(block));
    at += bytes_of(block);
  });
  clear_up_to(blocks_);
}

}  // namespace omnihvd
