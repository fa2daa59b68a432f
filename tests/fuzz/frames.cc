// Frames as workers and aggregators make them: what is written is read (protocol/frame_bytes.h).
#include "frames.h"

#include <set>

using namespace omnihvd;
using namespace omnihvd::fuzz;

static std::set<uint64_t> drawn_positions(Input& in, uint64_t most, uint64_t end) {
  std::set<uint64_t> positions;
  for (uint64_t left = end ? in.between(0, most) : 0; left > 0; --left)
    positions.insert(in.between(0, end - 1));
  return positions;
}

FUZZ(in) {
  Shape shape = drawn_shape(in);
  shape.codec = {};
  shape.arithmetic = {};
  const Layout layout(shape);
  const auto aggregator = uint32_t(in.between(0, shape.aggregators - 1));
  const BlockOps& ops = block_ops(shape.dtype);
  const size_t element = size_of(shape.dtype);
  OwnFrame own;
  own.frame.clear(uint32_t(in.between(0, shape.slots - 1)), in.number<uint32_t>());
  if (in.flag()) own.frame.bound = in.number<uint64_t>();
  const uint64_t end = layout.positions(own.frame.slot);
  const std::set<uint64_t> ahead = drawn_positions(in, 2 * uint64_t{shape.window}, end);
  own.frame.ahead.assign(ahead.begin(), ahead.end());
  own.blocks.reserve(shape.window);
  for (const uint64_t position : drawn_positions(in, shape.window, end)) {
    const uint32_t n = layout.elements_of(layout.block_at(aggregator, own.frame.slot, position));
    if (n == 0) continue;
    const uint8_t zeros = in.number<uint8_t>();
    Bytes block(n * element);
    for (uint32_t i = 0; i < n && !in.empty(); ++i)
      if (in.number<uint8_t>() >= zeros) block[i * element + i % element] = uint8_t(1 + i % 100);
    const bool packs = in.flag();
    if (packs) {
      Bytes packed(bitmap_bytes(n) + ops.count_nonzero(block.data(), n) * element);
      ops.pack(block.data(), n, packed.data());
      block = packed;
    }
    own.blocks.push_back(block);
    own.frame.blocks.push_back(
        {position, own.blocks.back().data(), uint32_t(own.blocks.back().size()), packs});
  }
  must_come_back(own, layout, aggregator, Kind::contribution, nullptr);
}
