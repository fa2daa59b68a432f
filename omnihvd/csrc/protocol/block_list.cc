#include "protocol/block_list.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

namespace omnihvd {
namespace {

constexpr size_t kChunkBytes = 1 << 20;  // at least a row

void check_shape(uint64_t length, uint64_t blocks) {
  if (length == 0 || length > ListCall::kMostLength)
    throw Error("blocks of " + std::to_string(length) + " elements: a list's blocks have 1 to " +
                std::to_string(ListCall::kMostLength));
  if (blocks == 0 || blocks > (uint64_t{1} << 56) / length)
    throw Error("a tensor of " + std::to_string(blocks) + " blocks of " + std::to_string(length) +
                " elements: it needs 1 block, and can have 2^56 elements");
}

}  // namespace

BlockList::BlockList(const ListCall& of) : call(of) {
  check_shape(call.length, call.blocks);
  const int64_t* const indices = call.indices;
  std::vector<uint64_t> order(call.count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  const auto before = [indices](uint64_t a, uint64_t b) { return indices[a] < indices[b]; };
  // Stable: rows with equal numbers are added in the caller's order.
  if (!std::is_sorted(order.begin(), order.end(), before))
    std::stable_sort(order.begin(), order.end(), before);
  numbers.reserve(call.count);
  rows_.reserve(call.count);
  for (uint64_t first = 0, last; first < call.count; first = last) {
    const int64_t number = indices[order[first]];
    if (number < 0 || uint64_t(number) >= call.blocks)
      throw Error("block " + std::to_string(number) + " of a tensor of " +
                  std::to_string(call.blocks) + " blocks: there is no such block");
    for (last = first + 1; last < call.count && indices[order[last]] == number;) ++last;
    numbers.push_back(uint64_t(number));
    rows_.push_back(sum_of(&order[first], &order[first] + (last - first)));
  }
}

const uint8_t* BlockList::sum_of(const uint64_t* first, const uint64_t* last) {
  const auto* const values = static_cast<const uint8_t*>(call.values);
  const auto row = [&] { return values + *first * call.row_bytes(); };
  if (last - first == 1) return row();
  const BlockOps& ops = block_ops(call.dtype);
  repeated_.emplace_back(new uint8_t[call.length * accumulator_size_of(call.dtype)]);
  uint8_t* const sum = repeated_.back().get();
  ops.store(sum, row(), call.length);
  while (++first < last) ops.add(sum, row(), call.length);
  ops.finish(sum, sum, call.length);
  return sum;
}

const uint8_t* BlockList::row(uint64_t number) const {
  const auto found = std::lower_bound(numbers.begin(), numbers.end(), number);
  return rows_[size_t(found - numbers.begin())];
}

void ListedSums::begin(size_t row_bytes) {
  row_bytes_ = row_bytes;
  parts_.clear();
  used_ = 0;
}

ListedSums::Part& ListedSums::part() {
  const std::lock_guard lock(mutex_);
  return parts_.emplace_back();
}

uint8_t* ListedSums::add(Part& part, uint64_t number) {
  if (part.left == 0) {
    const std::lock_guard lock(mutex_);
    if (used_ == chunks_.size()) chunks_.emplace_back(new uint8_t[kChunkBytes]);
    part.room = chunks_[used_++].get();
    part.left = kChunkBytes / row_bytes_;
  }
  --part.left;
  part.rows.emplace_back(number, part.room);
  return std::exchange(part.room, part.room + row_bytes_);
}

uint64_t ListedSums::count() const {
  uint64_t rows = 0;
  for (const Part& part : parts_) rows += part.rows.size();
  return rows;
}

void ListedSums::take(int64_t* numbers, void* values) const {
  std::vector<std::pair<uint64_t, const uint8_t*>> rows;
  rows.reserve(count());
  for (const Part& part : parts_) rows.insert(rows.end(), part.rows.begin(), part.rows.end());
  std::sort(rows.begin(), rows.end());
  auto* to = static_cast<uint8_t*>(values);
  for (const auto& [number, row] : rows) {
    *numbers++ = int64_t(number);
    std::memcpy(to, row, row_bytes_);
    to += row_bytes_;
  }
}

ListTensor::ListTensor(const Layout& layout, const BlockList& list, ListedSums* sums)
    : list_(list),
      ops_(block_ops(list.call.dtype)),
      row_bytes_(list.call.row_bytes()),
      element_(size_of(list.call.dtype)),
      out_(static_cast<uint8_t*>(list.call.out)),
      sums_(sums),
      part_(out_ ? nullptr : &sums->part()),
      scratch_(layout.shape().window * layout.shape().block_bytes()) {}

BlockRef ListTensor::read(uint64_t block, uint64_t position) {
  const uint8_t* const row = list_.row(block);
  const size_t n = list_.call.length;
  if (!worth_packing(n, ops_.count_nonzero(row, n), element_))
    return {position, row, uint32_t(row_bytes_), false};
  uint8_t* const made = scratch_.data() + scratch_used_;
  const size_t bytes = ops_.pack(row, n, made);
  scratch_used_ += bytes;
  return {position, made, uint32_t(bytes), true};
}

void ListTensor::write(uint64_t block, const BlockRef& sum) {
  uint8_t* const row = out_ ? out_ + block * row_bytes_ : sums_->add(*part_, block);
  const size_t n = list_.call.length;
  if (sum.offsets)
    ops_.unlist(sum.offsets, sum.data, sum.bytes / element_, row, n);
  else if (sum.packed)
    ops_.unpack(sum.data, n, row);
  else
    std::memcpy(row, sum.data, row_bytes_);
}

void ListTensor::write_zero(uint64_t block) {
  std::memset(out_ + block * row_bytes_, 0, row_bytes_);
}

}  // namespace omnihvd
