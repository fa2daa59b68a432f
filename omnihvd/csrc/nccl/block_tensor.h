// A worker's tensor that reads blocks in one place and writes their sums to another.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "protocol/tensor.h"

namespace omnihvd {

// A block, packed if it has fewer bytes than its elements take.
struct BlockBytes {
  const uint8_t* data;
  uint32_t bytes;
};

// Both take a block's number in the whole tensor; this part of it begins at block `first`. Owns
// neither. Like any Tensor it is for one thread, but the progress threads share `to`.
template <typename From, typename To>
class BlockTensor : public Tensor {
 public:
  BlockTensor(const Layout& layout, uint64_t first, From& from, To& to)
      : layout_(layout), first_(first), from_(from), to_(to) {}

  bool nonzero(uint64_t block) override { return from_.has(first_ + block); }
  BlockRef read(uint64_t block, uint64_t position) override {
    const BlockBytes b = from_.at(first_ + block);
    const size_t plain = layout_.elements_of(block) * size_of(layout_.shape().dtype);
    return {position, b.data, b.bytes, b.bytes < plain};
  }
  void next_message() override {}
  void write(uint64_t block, const BlockRef& sum) override {
    if (!sum.offsets) return to_.put(first_ + block, sum);
    const size_t element = size_of(layout_.shape().dtype);
    const uint32_t n = layout_.elements_of(block);
    packed_.resize(layout_.shape().block_bytes());
    const size_t bytes =
        pack_listed(sum.offsets, sum.data, sum.bytes / element, element, n, packed_.data());
    to_.put(first_ + block, {sum.position, packed_.data(), uint32_t(bytes), true});
  }
  // Blocks without a put() stay absent.
  void write_zero(uint64_t) override {}
  bool wants_zeros() const override { return false; }

 private:
  const Layout& layout_;
  const uint64_t first_;
  From& from_;
  To& to_;
  std::vector<uint8_t> packed_;  // scratch
};

// Assigns places in a piece of memory to blocks: whole units each, in the order of their arrival.
// Several threads may take places at once.
class BlockPlaces {
 public:
  explicit BlockPlaces(uint64_t unit = 16) : unit_(unit) {}
  uint64_t take(uint32_t bytes) {
    return used_.fetch_add((bytes + unit_ - 1) / unit_ * unit_, std::memory_order_relaxed);
  }
  void clear() { used_ = 0; }

 private:
  const uint64_t unit_;
  std::atomic<uint64_t> used_{0};
};

// Sums that go to another level. The progress threads write each block once; it is read when all
// are there.
class BlockStore {
 public:
  // Must not be in use. bytes: of all blocks, unpacked.
  void clear(uint64_t blocks, uint64_t bytes) {
    place_.assign(blocks, 0);
    places_.clear();
    if (bytes <= room_) return;
    data_.reset(new uint8_t[bytes]);  // not cleared
    room_ = bytes;
  }
  bool has(uint64_t block) const { return place_[block] != 0; }
  BlockBytes at(uint64_t block) const {
    return {data_.get() + (place_[block] >> 16), static_cast<uint32_t>(place_[block] & 0xffff)};
  }
  void put(uint64_t block, const BlockRef& sum) {
    const uint64_t at = places_.take(static_cast<uint32_t>(sum.bytes));
    std::memcpy(data_.get() + at, sum.data, sum.bytes);
    place_[block] = at << 16 | sum.bytes;
  }

 private:
  std::vector<uint64_t> place_;  // offset << 16 | bytes; 0: none
  BlockPlaces places_;
  std::unique_ptr<uint8_t[]> data_;
  uint64_t room_ = 0;
};

}  // namespace omnihvd
