// MessageReader: reading frames.
#include <algorithm>

#include "base/error.h"
#include "numeric/block_ops.h"
#include "numeric/lossless.h"
#include "protocol/number_set.h"
#include "protocol/wire.h"

namespace omnihvd {

uint64_t MessageReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = *take(1);
    value |= uint64_t(byte & 0x7F) << shift;
    if (!(byte & 0x80)) return value;
  }
  malformed("number too long");
}

// Reads at most `most` positions, all below `end`.
void MessageReader::read_positions(uint64_t end, uint64_t most, std::vector<uint64_t>* out) {
  out->clear();
  const uint64_t count = varint();
  if (count > most) malformed("too many blocks");
  if (count == 0) return;
  const uint64_t first = varint();
  const uint64_t left_out = count > 1 ? varint() : 0;
  if (first >= end || count > end - first || left_out > end - first - count)
    malformed("positions out of range");
  if (left_out == 0) {
    for (uint64_t i = 0; i < count; ++i) out->push_back(first + i);
    return;
  }
  const uint64_t range = count + left_out - 2;
  if (range > uint64_t{1} << 32) malformed("positions out of range");
  numbers_.resize(count - 2);
  const uint8_t* const set = take(set_bytes(count - 2, range));
  if (!read_set(set, count - 2, range, numbers_.data())) malformed("positions out of order");
  out->push_back(first);
  for (const uint32_t number : numbers_) out->push_back(first + 1 + number);
  out->push_back(first + 1 + range);
}

void MessageReader::read_exponents(Frame* frame) {
  const size_t count = frame->ahead.size();
  const uint8_t* const exponents = take(count);
  frame->exponents.assign(exponents, exponents + count);
  for (const uint8_t exponent : frame->exponents)
    if (exponent == 0 || exponent > kLargestExponent) malformed("an impossible exponent");
}

void MessageReader::read_forms(unsigned flags, size_t blocks) {
  const Form form = Form(flags / frame_flags::kForm);
  forms_.assign(blocks, uint8_t(form));
  if (form != Form::mixed) return;
  const uint8_t* const forms = take((blocks + 3) / 4);
  for (size_t i = 0; i < blocks; ++i) forms_[i] = forms[i / 4] >> (i % 4 * 2) & 3;
}

const uint8_t* MessageReader::read_coded(const Shape& shape, uint32_t n, uint32_t* bytes) {
  const Codec& codec = shape.codec;
  if (shape.arithmetic.integers()) {
    if (remaining() == 0) malformed("ends early");
    const int codes = codec && header_.kind == Kind::contribution ? kCodes : 0;
    if (data_[at_] & ~(kNoNumbers | codes)) malformed("a block of integers that nothing writes");
    *bytes = uint32_t(integer_block_bytes(n, data_[at_]));
    return take(*bytes);
  }
  if (codec.kind == CodecKind::lossless) {
    *bytes = uint32_t(lossless_bytes(data_ + at_, remaining(), n, size_of(shape.dtype)));
    if (*bytes == 0) malformed("a coded block that nothing writes");
    return take(*bytes);
  }
  const size_t size = codec ? coded_bytes(coding_of(header_.kind, codec), n) : SIZE_MAX;
  if (size >= n * sizeof(float)) malformed("a block that is not to be coded");
  *bytes = uint32_t(size);
  const uint8_t* const at = take(size);
  if (!is_coded(coding_of(header_.kind, codec), at)) malformed("a coded block that nothing writes");
  return at;
}

void MessageReader::read_listed(const Layout& layout, size_t last_elements, Frame* frame) {
  const uint64_t groups = uint64_t(std::count(forms_.begin(), forms_.end(), uint8_t(Form::listed)));
  if (groups == 0) return;
  const size_t element = size_of(layout.shape().dtype);
  const unsigned width = offset_bits(layout.shape().block_size);
  const uint64_t more = varint();
  if (more > remaining() / element) malformed("ends early");
  const uint64_t count = groups + more;
  if (count > groups << width) malformed("more elements than the blocks have");
  const uint8_t* const where = take(set_bytes(count, groups << width));
  const uint8_t* elements = take(count * element);
  numbers_.resize(count);
  if (!read_set(where, count, groups << width, numbers_.data())) malformed("elements out of order");

  // Numbers become offsets, in place.
  uint64_t i = 0, group = 0;
  for (size_t at = 0; at < forms_.size(); ++at) {
    if (Form(forms_[at]) != Form::listed) continue;
    BlockRef& block = frame->blocks[at];
    const size_t n = at + 1 == forms_.size() ? last_elements : layout.shape().block_size;
    const uint64_t first = i, base = group++ << width;
    for (; i < count && numbers_[i] - base < n; ++i) numbers_[i] -= uint32_t(base);
    if (i == first) malformed("a listed block without elements, or with some beyond its end");
    if (!worth_packing(n, i - first, element)) malformed("a listed block that is not sparse");
    block.data = elements;
    block.bytes = uint32_t((i - first) * element);
    block.offsets = numbers_.data() + first;
    elements += block.bytes;
  }
  if (i != count) malformed("elements beyond the last listed block");
}

const uint8_t* MessageReader::read_packed(uint32_t n, size_t element, uint32_t* bytes) {
  const size_t bitmap = bitmap_bytes(n);
  if (bitmap > remaining()) malformed("ends early");
  const uint8_t* const at = data_ + at_;
  if (n % 8 && at[n / 8] >> (n % 8)) malformed("bits beyond the block");
  *bytes = uint32_t(bitmap + packed_count(at, n) * element);
  return take(*bytes);
}

bool MessageReader::more() const {
  if (frames_left_ == 0 && remaining()) malformed("bytes after its last frame");
  return frames_left_ > 0;
}

bool MessageReader::next(const Layout& layout, uint32_t aggregator, const Named& named,
                         Frame* frame) {
  if (!more()) return false;
  --frames_left_;
  const uint64_t slot = varint();
  const uint64_t round = varint();
  if (slot >= layout.shape().slots || round > UINT32_MAX) malformed("no such slot or round");
  frame->clear(uint32_t(slot), uint32_t(round));
  frame->bound = varint() - 1;
  const unsigned all_flags = *take(1), flags = all_flags & ~frame_flags::kKept;
  if (flags >= frame_flags::kEnd) malformed("unknown flags");
  frame->as_named = flags & frame_flags::kAsNamed;
  const uint64_t end = layout.positions(frame->slot), window = layout.shape().window;
  if (all_flags != flags) {
    const uint64_t kept = varint();
    if (header_.kind != Kind::result || !layout.shape().for_one() || kept == 0 || kept > window)
      malformed("sums that nobody can have kept");
    frame->kept = uint32_t(kept);
  }
  Positions positions;
  if (frame->as_named) {
    if (!named) malformed("blocks that nobody has named");
    positions = named(frame->slot, frame->round);
  } else {
    read_positions(end, window, &positions_);
    positions = {positions_.data(), positions_.size()};
  }
  if (flags & frame_flags::kAhead) {
    read_positions(end, Frame::most_ahead(uint32_t(window)), &frame->ahead);
    if (layout.shape().arithmetic.integers()) read_exponents(frame);
  }
  if (frame->kept && positions.size) malformed("sums that are kept, and sent");
  read_forms(flags, positions.size);
  if (positions.size == 0) return true;

  // Blocks ascend, so that only the last one can be short.
  const uint32_t whole = layout.shape().block_size;
  const uint32_t last = layout.elements_of(
      layout.block_at(aggregator, frame->slot, positions.data[positions.size - 1]));
  if (last == 0) malformed("a block beyond the tensor");
  for (size_t i = 0; i < positions.size; ++i)
    frame->blocks.push_back({positions.data[i], nullptr, 0, Form(forms_[i]) == Form::packed,
                             nullptr, nullptr, Form(forms_[i]) == Form::coded});
  read_listed(layout, last, frame);
  const size_t element = size_of(layout.shape().dtype);
  const auto n_of = [&](const BlockRef& block) {
    return &block == &frame->blocks.back() ? last : whole;
  };
  bool plain = false;
  for (BlockRef& block : frame->blocks) {
    if (block.packed)
      block.data = read_packed(n_of(block), element, &block.bytes);
    else if (block.coded)
      block.data = read_coded(layout.shape(), n_of(block), &block.bytes);
    plain |= !block.packed && !block.offsets && !block.coded;
  }
  if (plain) take(-at_ % 8);
  for (BlockRef& block : frame->blocks) {
    if (block.packed || block.offsets || block.coded) continue;
    block.bytes = uint32_t(n_of(block) * element);
    block.data = take(block.bytes);
  }
  return true;
}

}  // namespace omnihvd
