// How the blocks of a tensor are distributed over aggregators and slots: closed-form arithmetic,
// the same on every rank, so that no table travels.
//
//   stripe    `stripe` consecutive blocks: they stay together, so that dense data travels in runs
//   row       `aggregators` consecutive stripes, one for each aggregator; the assignment rotates
//             pseudo-randomly from row to row, so that neither a hot region nor a periodic pattern
//             (embedding rows, channels) loads one aggregator more than another
//   turn      `window / stripe` stripes of an aggregator: one message's worth if dense; turns cycle
//             through the aggregator's slots
//   position  index of a block in its slot's stream. Block numbers ascend with it.
//
// A slot's stream may end in positions past the tensor's last block: these count as zero.
//
// A reduce-scatter has no layout of its own: it is one reduce to each rank, of that rank's share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "numeric/codec.h"
#include "numeric/dtype.h"
#include "protocol/arithmetic.h"

namespace omnihvd {

// The facts that all ranks of a collective must agree on. Travels with each first contribution.
struct Shape {
  uint64_t count = 0;  // elements
  DType dtype = DType::f32;
  uint32_t block_size = 256;  // elements
  uint32_t aggregators = 1;
  uint32_t slots = 1;     // per aggregator
  uint32_t window = 1;    // blocks per slot: the most that one message sums; a multiple of stripe
  uint32_t stripe = 1;    // blocks
  Codec codec;            // must support the dtype
  Arithmetic arithmetic;  // must support the dtype, and admit the codec if not the dtype's own
  // In a reduce: the rank that alone gets the sums, since it has the one aggregator.
  static constexpr uint32_t kAll = UINT32_MAX;
  uint32_t owner = kAll;

  bool operator==(const Shape& o) const {
    return count == o.count && dtype == o.dtype && block_size == o.block_size &&
           aggregators == o.aggregators && slots == o.slots && window == o.window &&
           stripe == o.stripe && codec == o.codec && arithmetic == o.arithmetic && owner == o.owner;
  }
  bool operator!=(const Shape& o) const { return !(*this == o); }

  bool for_one() const { return owner != kAll; }
  // The share (seats.h) of one of the aggregators, as they are numbered here.
  uint32_t share_of(uint32_t aggregator) const { return for_one() ? owner : aggregator; }
  uint64_t blocks() const { return (count + block_size - 1) / block_size; }
  size_t block_bytes() const { return size_t(block_size) * size_of(dtype); }
  // The codec by which aggregators decode and encode.
  Codec sums_codec() const { return arithmetic ? Codec() : codec; }
  // At most: an aggregator's sum of a block, and the block that it encodes from that.
  size_t sum_bytes() const {
    return size_t(block_size) *
           (arithmetic.registers() ? kRegisterBytes : accumulator_size_of(dtype));
  }
  size_t made_bytes() const {
    return arithmetic.integers() ? integer_block_bytes(block_size, kNoNumbers) : block_bytes();
  }

  // Fits windows and slots to the tensor: windows of about message_bytes, and no more slots than
  // there are windows for them.
  static Shape fit(uint64_t count, DType dtype, uint32_t block_size, uint32_t aggregators,
                   uint32_t max_slots, uint32_t message_bytes, const Codec& codec = {});
};

class Layout {
 public:
  explicit Layout(const Shape& shape)
      : shape_(shape),
        blocks_(shape.blocks()),
        stripes_per_turn_(shape.window / shape.stripe),
        turns_(ceil_div(blocks_, uint64_t(shape.window) * shape.aggregators)) {}

  const Shape& shape() const { return shape_; }
  uint64_t blocks() const { return blocks_; }

  // Length of a slot's stream, in positions; the same for every aggregator.
  uint64_t positions(uint32_t slot) const {
    const uint64_t turns = turns_ > slot ? ceil_div(turns_ - slot, shape_.slots) : 0;
    return turns * shape_.window;
  }

  // May be >= blocks(): there is no such block.
  uint64_t block_at(uint32_t aggregator, uint32_t slot, uint64_t position) const {
    const uint64_t row = row_number(slot, position);
    const uint64_t all = shape_.aggregators;
    const uint64_t column = (aggregator + all - rotation(row)) % all;
    return (row * all + column) * shape_.stripe + position % shape_.stripe;
  }

  // The stripes of all aggregators at one position of a slot's stream: adjacent in the tensor.
  struct Row {
    uint64_t first_block;
    uint32_t rotation;  // stripe c belongs to aggregator (c + rotation) % aggregators
  };
  Row row_at(uint32_t slot, uint64_t position) const {
    const uint64_t row = row_number(slot, position);
    return {row * shape_.aggregators * shape_.stripe, uint32_t(rotation(row))};
  }

  struct Place {
    uint32_t aggregator;
    uint32_t slot;
    uint64_t position;
  };
  Place place_of(uint64_t block) const {
    const uint64_t stripe = block / shape_.stripe;
    const uint64_t row = stripe / shape_.aggregators;
    const uint64_t turn = row / stripes_per_turn_;
    const uint64_t stripe_in_slot =
        turn / shape_.slots * stripes_per_turn_ + row % stripes_per_turn_;
    return {uint32_t((stripe + rotation(row)) % shape_.aggregators), uint32_t(turn % shape_.slots),
            stripe_in_slot * shape_.stripe + block % shape_.stripe};
  }

  // Elements in a block: block_size; fewer in the tensor's last block, 0 beyond it.
  uint32_t elements_of(uint64_t block) const {
    const uint64_t first = block * shape_.block_size;
    if (block >= blocks_) return 0;
    return uint32_t(std::min<uint64_t>(shape_.block_size, shape_.count - first));
  }

 private:
  uint64_t row_number(uint32_t slot, uint64_t position) const {
    const uint64_t stripe_in_slot = position / shape_.stripe;
    const uint64_t turn = stripe_in_slot / stripes_per_turn_ * shape_.slots + slot;
    return turn * stripes_per_turn_ + stripe_in_slot % stripes_per_turn_;
  }
  static uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
  uint64_t rotation(uint64_t row) const {
    return ((row * 0x9E3779B97F4A7C15ull) >> 40) % shape_.aggregators;
  }

  Shape shape_;
  uint64_t blocks_;
  uint64_t stripes_per_turn_;
  uint64_t turns_;
};

// block_at() for mostly consecutive positions: divides once per stripe.
class BlockCursor {
 public:
  BlockCursor(const Layout& layout, uint32_t aggregator, uint32_t slot)
      : layout_(layout), aggregator_(aggregator), slot_(slot) {}
  uint64_t block_at(uint64_t position) {
    if (position < begin_ || position >= end_) {
      const uint32_t stripe = layout_.shape().stripe;
      begin_ = position / stripe * stripe;
      end_ = begin_ + stripe;
      first_block_ = layout_.block_at(aggregator_, slot_, begin_);
    }
    return first_block_ + (position - begin_);
  }
  uint32_t elements_at(uint64_t position) { return layout_.elements_of(block_at(position)); }

 private:
  const Layout& layout_;
  const uint32_t aggregator_, slot_;
  uint64_t begin_ = 0, end_ = 0, first_block_ = 0;
};

inline Shape Shape::fit(uint64_t count, DType dtype, uint32_t block_size, uint32_t aggregators,
                        uint32_t max_slots, uint32_t message_bytes, const Codec& codec) {
  // Long enough to travel as a run, short enough to spread a hot region of a few hundred blocks.
  constexpr uint32_t kStripeBytes = 8192;
  Shape shape;
  shape.count = count;
  shape.dtype = dtype;
  shape.block_size = block_size;
  shape.aggregators = aggregators;
  shape.codec = codec;
  const uint64_t block_bytes = shape.block_bytes();
  const uint64_t window = std::max<uint64_t>(1, message_bytes / block_bytes);
  shape.stripe = uint32_t(std::clamp<uint64_t>(kStripeBytes / block_bytes, 1, window));
  shape.window = uint32_t(window / shape.stripe * shape.stripe);
  const uint64_t row = uint64_t(shape.window) * aggregators;
  const uint64_t windows = (shape.blocks() + row - 1) / row;
  shape.slots = uint32_t(std::clamp<uint64_t>(windows, 1, max_slots));
  return shape;
}

}  // namespace omnihvd
