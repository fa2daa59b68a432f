#include "protocol/frame_bytes.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "numeric/block_ops.h"
#include "protocol/number_set.h"

namespace omnihvd {
namespace {

// Is a packed block worth listing?
bool worth_listing(uint64_t n, uint64_t nonzero, size_t element) {
  if (nonzero == 0 || !worth_packing(n, nonzero, element)) return false;
  const uint64_t elements = nonzero * element * 8;
  return 10 * (set_bits(nonzero, n) + elements) <= 9 * (n + elements);
}

constexpr size_t kBatch = 8;

// The indices of the set bits among n bits, plus `base`. Writes up to kBatch entries too many: that
// is cheaper than to check at each bit whether it is the last.
uint32_t* list_bits(const uint8_t* bitmap, size_t n, uint32_t base, uint32_t* out) {
  for (size_t first = 0; first < n; first += 64, base += 64) {
    uint64_t word = 0;
    std::memcpy(&word, bitmap + first / 8, std::min<size_t>(8, bitmap_bytes(n - first)));
    if (n - first < 64) word &= (uint64_t{1} << (n - first)) - 1;
    uint32_t* const next = out + __builtin_popcountll(word);
    for (; word; out += kBatch)
      for (size_t i = 0; i < kBatch; ++i, word &= word - 1)
        out[i] = base + unsigned(__builtin_ctzll(word | uint64_t{1} << 63));
    out = next;
  }
  return out;
}

void append(std::vector<Slice>* runs, const uint8_t* data, size_t bytes) {
  if (!runs->empty() && static_cast<const uint8_t*>(runs->back().data) + runs->back().size == data)
    runs->back().size += bytes;
  else
    runs->push_back({data, bytes});
}

}  // namespace

uint8_t* FrameBytes::grow(size_t bytes) {
  head_.resize(head_.size() + bytes);
  return head_.data() + head_.size() - bytes;
}

void FrameBytes::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) head_.push_back(uint8_t(value | 0x80));
  head_.push_back(uint8_t(value));
}

// Writes the positions in positions_.
void FrameBytes::write_positions() {
  const size_t count = positions_.size();
  varint(count);
  if (count == 0) return;
  const uint64_t first = positions_.front(), last = positions_.back();
  varint(first);
  if (count == 1) return;
  const uint64_t left_out = last - first + 1 - count;
  varint(left_out);
  if (left_out == 0) return;
  const uint64_t range = last - first - 1;
  OMNIHVD_INVARIANT(range <= uint64_t{1} << 32);
  numbers_.clear();
  for (size_t i = 1; i + 1 < count; ++i) numbers_.push_back(uint32_t(positions_[i] - first - 1));
  write_set(numbers_.data(), count - 2, range, grow(set_bytes(count - 2, range)));
}

// Blocks ascend, so that only the last one can be short.
void FrameBytes::choose_forms(const Frame& frame, const Layout& layout, uint32_t last_elements) {
  const size_t element = size_of(layout.shape().dtype);
  forms_.clear();
  counts_.clear();
  for (const BlockRef& block : frame.blocks) {
    const uint32_t n = &block == &frame.blocks.back() ? last_elements : layout.shape().block_size;
    const size_t count = block.packed ? packed_count(block.data, n) : 0;
    const bool listed = block.packed && block.bytes == bitmap_bytes(n) + count * element &&
                        worth_listing(n, count, element);
    forms_.push_back(listed         ? Form::listed
                     : block.packed ? Form::packed
                     : block.coded  ? Form::coded
                                    : Form::plain);
    counts_.push_back(uint32_t(count));
  }
}

void FrameBytes::write_listed(const Frame& frame, const Layout& layout, uint32_t last_elements) {
  const size_t element = size_of(layout.shape().dtype);
  const unsigned width = offset_bits(layout.shape().block_size);
  uint64_t groups = 0, count = 0;
  for (size_t i = 0; i < forms_.size(); ++i) {
    if (forms_[i] != Form::listed) continue;
    ++groups;
    count += counts_[i];
  }
  if (groups == 0) return;
  varint(count - groups);
  numbers_.resize(count + kBatch);
  uint32_t* number = numbers_.data();
  uint32_t group = 0;
  for (size_t i = 0; i < forms_.size(); ++i) {
    if (forms_[i] != Form::listed) continue;
    const uint32_t n = i + 1 == forms_.size() ? last_elements : layout.shape().block_size;
    number = list_bits(frame.blocks[i].data, n, group++ << width, number);
  }
  write_set(numbers_.data(), count, groups << width, grow(set_bytes(count, groups << width)));
  uint8_t* out = grow(count * element);
  for (size_t i = 0; i < forms_.size(); ++i) {
    if (forms_[i] != Form::listed) continue;
    const size_t bytes = counts_[i] * element;
    std::memcpy(out, frame.blocks[i].data + frame.blocks[i].bytes - bytes, bytes);
    out += bytes;
  }
}

void FrameBytes::encode(const Frame& frame, const Layout& layout, uint32_t aggregator,
                        std::optional<uint64_t> seat) {
  head_.clear();
  packed_.clear();
  plain_.clear();
  const uint32_t last_elements = frame.blocks.empty()
                                     ? 0
                                     : layout.elements_of(layout.block_at(
                                           aggregator, frame.slot, frame.blocks.back().position));
  choose_forms(frame, layout, last_elements);
  Form form = forms_.empty() ? Form::plain : forms_[0];
  for (const Form other : forms_)
    if (other != form) form = Form::mixed;

  if (seat) varint(*seat);
  varint(frame.slot);
  varint(frame.round);
  varint(frame.bound + 1);
  head_.push_back(uint8_t((frame.as_named ? frame_flags::kAsNamed : 0) |
                          (frame.ahead.empty() ? 0 : frame_flags::kAhead) |
                          (frame.kept ? frame_flags::kKept : 0) |
                          unsigned(form) * frame_flags::kForm));
  if (frame.kept) varint(frame.kept);
  if (!frame.as_named) {
    positions_.clear();
    for (const BlockRef& block : frame.blocks) positions_.push_back(block.position);
    write_positions();
  }
  if (!frame.ahead.empty()) {
    positions_ = frame.ahead;
    write_positions();
    if (layout.shape().arithmetic.integers()) {
      OMNIHVD_INVARIANT(frame.exponents.size() == frame.ahead.size());
      head_.insert(head_.end(), frame.exponents.begin(), frame.exponents.end());
    }
  }
  if (form == Form::mixed) {
    uint8_t* const out = grow((forms_.size() + 3) / 4);
    for (size_t i = 0; i < forms_.size(); ++i)
      out[i / 4] = uint8_t(out[i / 4] | unsigned(forms_[i]) << (i % 4 * 2));
  }
  write_listed(frame, layout, last_elements);
  size_ = head_.size();
  for (size_t i = 0; i < forms_.size(); ++i) {
    if (forms_[i] == Form::listed) continue;
    const BlockRef& block = frame.blocks[i];
    append(block.packed || block.coded ? &packed_ : &plain_, block.data, block.bytes);
    size_ += block.bytes;
  }
}

}  // namespace omnihvd
