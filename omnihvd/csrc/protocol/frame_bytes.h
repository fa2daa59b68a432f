// The wire format of a frame.
//
//   seat      a varint: the aggregator role (seats.h), if aggregators have levels
//   varints   slot, round, bound + 1 (0: kEnd)
//   flags     a byte: 1: as_named, 2: has ahead, 4 x the form of all blocks, 32: sums are kept
//   kept      a varint: how many; there are no blocks then
//   blocks    their positions, unless as_named
//   ahead     positions, if any; in integer sums, a byte for each: its exponent
//   forms     if mixed: two bits per block
//   listed    for the listed blocks together: their elements minus their number, as a varint; where
//             the elements are, as a set of block << bits of an offset | offset; the elements
//   packed    the packed (block_ops.h) and the coded blocks (codec.h; arithmetic.h in integer
//             sums), back to back
//   plain     if any: padding to 8 bytes from the front of the message, then the plain blocks
//
// Positions are their number, the first, and how many are left out between the first and the last;
// if any is left out, also a set of those between (number_set.h). Numbers are varints.
//
// In memory a sparse block is packed, whatever its form on the wire: a bitmap is fast to make and
// to use at any density. On the wire it is listed if that saves a tenth: with few elements a list
// is also faster to use than a bitmap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/slice.h"
#include "protocol/frame.h"
#include "protocol/layout.h"

namespace omnihvd {

enum class Form : uint8_t { plain, packed, listed, coded, mixed };

namespace frame_flags {
constexpr unsigned kAsNamed = 1, kAhead = 2, kForm = 4, kKept = 32;
constexpr unsigned kEnd = 20;  // of all flags but kKept: none from here on
}  // namespace frame_flags

// Positions in a slot's stream, ascending: not owned.
struct Positions {
  const uint64_t* data = nullptr;
  size_t size = 0;
};

// Bits of an offset in a listed block.
inline unsigned offset_bits(uint32_t block_size) {
  return block_size > 1 ? 32u - unsigned(__builtin_clz(block_size - 1)) : 0;
}

// A frame ready to send, encoded once for all messages that it goes into.
class FrameBytes {
 public:
  // Refers to the frame's blocks. `aggregator` names the stream that positions belong to.
  void encode(const Frame& frame, const Layout& layout, uint32_t aggregator,
              std::optional<uint64_t> seat = {});

  const std::vector<uint8_t>& head() const { return head_; }    // all before the packed blocks
  const std::vector<Slice>& packed() const { return packed_; }  // runs
  const std::vector<Slice>& plain() const { return plain_; }    // runs
  size_t size() const { return size_; }                         // without padding

 private:
  void varint(uint64_t value);
  void write_positions();
  void choose_forms(const Frame& frame, const Layout& layout, uint32_t last_elements);
  void write_listed(const Frame& frame, const Layout& layout, uint32_t last_elements);
  uint8_t* grow(size_t bytes);

  std::vector<uint8_t> head_;
  std::vector<Slice> packed_, plain_;
  size_t size_ = 0;
  std::vector<uint64_t> positions_;  // scratch
  std::vector<uint32_t> numbers_;
  std::vector<Form> forms_;       // [block]
  std::vector<uint32_t> counts_;  // [block]: elements, if listed
};

}  // namespace omnihvd
