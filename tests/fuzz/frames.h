// Shapes and frames of fuzz targets, and the form in which two frames compare.
#pragma once

#include "input.h"
#include "numeric/block_ops.h"
#include "protocol/wire.h"

namespace omnihvd::fuzz {

inline Shape drawn_shape(Input& in) {
  Shape shape;
  shape.count = in.between(0, 2000);
  shape.dtype = DType(in.between(0, kDTypes - 1));
  shape.block_size = uint32_t(in.between(1, 130));
  shape.aggregators = uint32_t(in.between(1, 3));
  shape.slots = uint32_t(in.between(1, 3));
  shape.stripe = uint32_t(in.between(1, 3));
  shape.window = shape.stripe * uint32_t(in.between(1, 5));
  const uint8_t how = in.number<uint8_t>();
  if (how % 4 == 1) shape.codec.kind = CodecKind(how / 4 % 8);
  if (shape.codec.kind == CodecKind::qsgd || shape.codec.kind == CodecKind::integer)
    shape.codec.bits = 4;
  if (shape.codec && !shape.codec.takes(shape.dtype)) shape.codec = {};
  if (how % 4 == 2) shape.arithmetic = Arithmetic::of(ArithmeticKind(how / 4 % 5), shape.dtype, 3);
  if (shape.arithmetic.integers() && how / 4 / 5 % 2) shape.codec.kind = CodecKind::natural;
  if (how % 4 == 3) {
    shape.aggregators = 1;
    shape.owner = how / 4 % 3;
  }
  return shape;
}

// A frame that owns its blocks, none of them listed.
struct OwnFrame {
  Frame frame;
  std::vector<Bytes> blocks;

  OwnFrame() = default;
  OwnFrame(const OwnFrame&) = delete;
  OwnFrame(const Frame& read, const Layout& layout, uint32_t aggregator) : frame(read) {
    const size_t element = size_of(layout.shape().dtype);
    blocks.reserve(read.blocks.size());
    for (BlockRef& block : frame.blocks) {
      const uint32_t n = layout.elements_of(layout.block_at(aggregator, read.slot, block.position));
      if (block.offsets) {
        Bytes packed(bitmap_bytes(n) + block.bytes);
        pack_listed(block.offsets, block.data, block.bytes / element, element, n, packed.data());
        blocks.push_back(packed);
        block.packed = true;
        block.offsets = nullptr;
      } else {
        blocks.emplace_back(block.data, block.data + block.bytes);
      }
      block.data = blocks.back().data();
      block.bytes = uint32_t(blocks.back().size());
    }
  }
  bool operator==(const OwnFrame& o) const {
    const auto same = [](const BlockRef& a, const BlockRef& b) {
      return a.position == b.position && a.packed == b.packed && a.coded == b.coded;
    };
    return frame.slot == o.frame.slot && frame.round == o.frame.round &&
           frame.bound == o.frame.bound && frame.as_named == o.frame.as_named &&
           frame.ahead == o.frame.ahead && frame.exponents == o.frame.exponents &&
           frame.kept == o.frame.kept && blocks == o.blocks &&
           std::equal(frame.blocks.begin(), frame.blocks.end(), o.frame.blocks.begin(),
                      o.frame.blocks.end(), same);
  }
};

inline Bytes gathered(Message& message, uint64_t number = 0) {
  message.finish(number);
  Bytes all;
  for (const Slice& slice : message.slices()) {
    const auto* const data = static_cast<const uint8_t*>(slice.data);
    all.insert(all.end(), data, data + slice.size);
  }
  all.shrink_to_fit();
  return all;
}

// Writes the frame into a message of its own, and reads it again.
inline void must_come_back(const OwnFrame& own, const Layout& layout, uint32_t aggregator,
                           Kind kind, const MessageReader::Named& named) {
  FrameBytes bytes;
  bytes.encode(own.frame, layout, aggregator);
  Header header;
  header.kind = kind;
  Message message;
  message.begin(header, nullptr);
  message.add(bytes);
  const Bytes sent = gathered(message);
  MessageReader reader(sent.data(), sent.size());
  Frame frame;
  MUST(reader.next(layout, aggregator, named, &frame));
  MUST(OwnFrame(frame, layout, aggregator) == own);
  MUST(!reader.more());
}

}  // namespace omnihvd::fuzz
