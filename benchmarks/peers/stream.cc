#include "stream.h"

#include <algorithm>
#include <cstring>

namespace peers {
namespace {

constexpr uint32_t kRun = 16;   // elements in a row that are added at once
constexpr uint32_t kLook = 64;  // elements that are looked at before it is asked what they were
constexpr uint64_t kAllThere = 0x0101010101010101;

void add_to(float* sums, const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) sums[i] += values[i];
}

bool any(const float* values, uint32_t count) {
  uint32_t i = 0;
  for (; i + kLook <= count; i += kLook) {
    uint32_t nonzero = 0;
    for (uint32_t j = i; j < i + kLook; ++j) nonzero |= values[j] != 0 ? 1 : 0;
    if (nonzero != 0) return true;
  }
  return std::any_of(values + i, values + count, [](float value) { return value != 0; });
}

uint64_t eight(const uint8_t* there) {
  uint64_t word;
  std::memcpy(&word, there, sizeof word);
  return word;
}

}  // namespace

bool is_long(size_t listed, size_t range, uint32_t width) {
  return listed * (1 + size_t{width}) >= range * width;
}

Stream list_of(const float* tensor, size_t rows, uint32_t width, uint32_t* numbers, float* values) {
  size_t listed = 0;
  for (size_t row = 0; row < rows; ++row) {
    const float* from = tensor + row * width;
    if (!any(from, width)) continue;
    if (is_long(listed + 1, rows, width)) return {nullptr, tensor, rows};
    numbers[listed] = static_cast<uint32_t>(row);
    std::copy_n(from, width, values + listed * width);
    ++listed;
  }
  return {numbers, values, listed};
}

Sum::Sum(uint32_t begin, uint32_t rows, uint32_t width)
    : begin_(begin),
      rows_(rows),
      width_(width),
      sums_(new float[size_t{rows} * width]),
      there_(new uint8_t[rows + sizeof(uint64_t)]),
      numbers_(new uint32_t[rows]),
      values_(new float[size_t{rows} * width]) {}

void Sum::add(const Stream& stream) {
  const size_t count = size_t{rows_} * width_;
  if (stream.dense()) {
    if (stale_) {
      std::memcpy(sums_.get(), stream.values, count * sizeof(float));
    } else {
      add_to(sums_.get(), stream.values, count);
    }
    stale_ = false;
    whole_ = true;
    return;
  }
  if (stale_) {
    std::memset(sums_.get(), 0, count * sizeof(float));
    std::memset(there_.get(), 0, rows_ + sizeof(uint64_t));
    stale_ = whole_ = false;
  }
  if (width_ == 1) {
    add_elements(stream);
  } else {
    add_rows(stream);
  }
}

void Sum::add_rows(const Stream& stream) {
  for (size_t i = 0; i < stream.rows; ++i) {
    const size_t row = stream.numbers[i] - begin_;
    add_to(sums_.get() + row * width_, stream.values + i * width_, width_);
    there_[row] = 1;
  }
}

void Sum::add_elements(const Stream& stream) {
  const uint32_t* numbers = stream.numbers;
  size_t i = 0;
  while (i < stream.rows) {
    const size_t at = numbers[i] - begin_;
    // They ascend: where the last of a run is so much larger, all in between are there.
    if (i + kRun <= stream.rows && numbers[i + kRun - 1] - numbers[i] == kRun - 1) {
      add_to(sums_.get() + at, stream.values + i, kRun);
      std::memset(there_.get() + at, 1, kRun);
      i += kRun;
    } else {
      sums_[at] += stream.values[i];
      there_[at] = 1;
      ++i;
    }
  }
}

Stream Sum::take(bool dense, bool keep) {
  if (stale_) return {numbers_.get(), values_.get(), 0};
  size_t count = rows_;
  if (!whole_) {
    count = 0;
    for (size_t row = 0; row < rows_; ++row) count += there_[row];
  }
  if (!dense && !whole_ && !is_long(count, rows_, width_)) return list(count, keep);
  stale_ = !keep;
  return {nullptr, sums_.get(), rows_};
}

Stream Sum::list(size_t count, bool keep) {
  size_t taken = 0;
  const auto take_rows = [&](size_t row, size_t some) {
    float* sums = sums_.get() + row * width_;
    for (size_t i = 0; i < some; ++i) {
      numbers_[taken + i] = static_cast<uint32_t>(begin_ + row + i);
    }
    std::copy_n(sums, some * width_, values_.get() + taken * width_);
    taken += some;
    if (keep) return;
    std::fill_n(sums, some * width_, 0.0F);
    std::memset(there_.get() + row, 0, some);
  };
  for (size_t row = 0; row < rows_ && taken < count; row += sizeof(uint64_t)) {
    const uint64_t word = eight(there_.get() + row);
    if (word == kAllThere) {
      take_rows(row, sizeof(uint64_t));
    } else if (word != 0) {
      for (size_t i = row; i < row + sizeof(uint64_t); ++i) {
        if (there_[i] != 0) take_rows(i, 1);
      }
    }
  }
  return {numbers_.get(), values_.get(), count};
}

}  // namespace peers
