// Tensors as lists of rows, as SparCML and Parallax have them, and their sums. Written from the
// papers, to be measured beside omnihvd: no part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace peers {

// Rows of a tensor, each of `width` floats: those that are there, by their numbers, ascending; or
// all rows of a range.
struct Stream {
  const uint32_t* numbers;  // null: of all
  const float* values;      // of rows x width
  size_t rows;
  bool dense() const { return numbers == nullptr; }
};

// Whether so many rows of a range are no shorter as a list than all of it (SparCML, section 5.1:
// the threshold delta).
bool is_long(size_t listed, size_t range, uint32_t width);

// The rows of a tensor that are not all zeros, in memory for all of them; if that is no shorter
// than the tensor, the tensor.
Stream list_of(const float* tensor, size_t rows, uint32_t width, uint32_t* numbers, float* values);

// A stream's, in a range of rows. As a list costs a pass over it, whatever the range, but for one
// byte a row in take().
class Sum {
 public:
  Sum(uint32_t begin, uint32_t rows, uint32_t width);

  uint32_t begin() const { return begin_; }
  uint32_t rows() const { return rows_; }

  // Its rows are in the range; a dense one has all of these.
  void add(const Stream& stream);

  // The sum so far, valid until the next call: dense if that is wanted or shorter, else a list.
  // From then on the sum is zero; `keep`: stays as it is.
  Stream take(bool dense, bool keep = false);

 private:
  void add_rows(const Stream& stream);
  void add_elements(const Stream& stream);
  Stream list(size_t count, bool keep);

  uint32_t begin_, rows_, width_;
  bool stale_ = true;   // what is in memory is another sum's
  bool whole_ = false;  // all rows are there
  std::unique_ptr<float[]> sums_;
  std::unique_ptr<uint8_t[]> there_;  // 1: the row is
  std::unique_ptr<uint32_t[]> numbers_;
  std::unique_ptr<float[]> values_;
};

}  // namespace peers
