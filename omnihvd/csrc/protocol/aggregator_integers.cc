// An aggregator's sums of integers (arithmetic.h).
#include <algorithm>
#include <cstring>

#include "protocol/aggregator_slot.h"

namespace omnihvd {

void Aggregator::add_integers(Version& version, size_t index, const uint8_t* block, size_t n,
                              bool first) {
  const uint8_t* integers = block + 1;
  if (block[0] & kCodes) {
    arithmetic_ops().from_codes(integers, n, decoded_.data());
    integers = decoded_.data();
  }
  (first ? ops_.store : ops_.add)(accumulator(version, index), integers, n);
  if (!(block[0] & kNoNumbers)) return;
  const uint8_t* const marks = block + integer_block_bytes(n, block[0]) - n * sizeof(int32_t);
  std::vector<int32_t>& all = version.no_numbers[index];
  all.resize(n);
  for (size_t i = 0; i < n; ++i) {
    int32_t mark;
    std::memcpy(&mark, marks + i * sizeof mark, sizeof mark);
    all[i] |= mark;
  }
}

// Appends the sum of a block, and the marks of its NaN and infinities, to what this version already
// holds.
BlockRef Aggregator::with_no_numbers(Version& version, size_t index, uint64_t position, size_t n,
                                     size_t used) {
  if (!version.packed) version.packed.reset(new uint8_t[packed_bytes_]);
  uint8_t* const made = version.packed.get() + used;
  made[0] = kNoNumbers;
  std::memcpy(made + 1, accumulator(version, index), n * sizeof(int32_t));
  std::memcpy(made + 1 + n * sizeof(int32_t), version.no_numbers[index].data(),
              n * sizeof(int32_t));
  const size_t bytes = integer_block_bytes(n, kNoNumbers);
  return {position, made, uint32_t(bytes), false, nullptr, nullptr, true};
}

// For the blocks that the frame names: the largest exponent that any member has.
void Aggregator::gather_exponents(const Slot& slot, Frame* frame) {
  const std::vector<uint64_t>& blocks = frame->ahead;
  frame->exponents.assign(blocks.size(), 0);
  if (blocks.empty()) return;
  for (const Named& named : slot.named) {
    const auto first = std::lower_bound(named.ahead.begin(), named.ahead.end(), blocks.front());
    size_t at = 0;
    for (auto i = size_t(first - named.ahead.begin()); i < named.ahead.size(); ++i) {
      while (at < blocks.size() && blocks[at] < named.ahead[i]) ++at;
      if (at == blocks.size()) break;
      if (blocks[at] == named.ahead[i])
        frame->exponents[at] = std::max(frame->exponents[at], named.exponents[i]);
    }
  }
}

}  // namespace omnihvd
