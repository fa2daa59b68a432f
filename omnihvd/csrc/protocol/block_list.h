// Tensors that are sparse from the start: a rank has a list of rows, all other rows are zero, and a
// row is a block of the protocol. Nobody searches for non-zero blocks, and nothing is unpacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "protocol/tensor.h"

namespace omnihvd {

// A rank's part in a sum of lists: `count` rows, with their numbers in any order. Rows with equal
// numbers are added. Owns nothing.
struct ListCall {
  static constexpr uint64_t kMostLength = 65536;  // OMNIHVD_BLOCK_SIZE's limit

  const void* values;
  const int64_t* indices;
  uint64_t count;
  uint64_t length;  // elements of a row
  uint64_t blocks;  // rows of the whole tensor
  DType dtype;
  void* out = nullptr;  // gets the dense sum; null: the sum is a list

  size_t row_bytes() const { return length * size_of(dtype); }
};

// A list as the protocol needs it: each number once, ascending. Refers to the call's rows.
struct BlockList {
  // Throws Error if a number is not in [0, blocks), or no list can have this shape.
  explicit BlockList(const ListCall& of);
  const uint8_t* row(uint64_t number) const;  // must be in the list

  const ListCall call;
  std::vector<uint64_t> numbers;

 private:
  const uint8_t* sum_of(const uint64_t* first, const uint64_t* last);  // of entries

  std::vector<const uint8_t*> rows_;                 // of `numbers`
  std::deque<std::unique_ptr<uint8_t[]>> repeated_;  // sums of rows with equal numbers
};

// A sum as a list. Progress threads fill it, each its own part. Keeps its memory for the
// next sum, because new memory costs page faults.
class ListedSums {
 public:
  struct Part {
    std::vector<std::pair<uint64_t, const uint8_t*>> rows;
    uint8_t* room = nullptr;  // in a chunk
    size_t left = 0;          // rows
  };

  void begin(size_t row_bytes);               // empties it
  Part& part();                               // a new one; any thread
  uint8_t* add(Part& part, uint64_t number);  // room for a row, which stays where it is
  // Once the sum is complete. take() writes count() rows and their numbers, which ascend.
  uint64_t count() const;
  void take(int64_t* numbers, void* values) const;

 private:
  size_t row_bytes_ = 0;
  std::mutex mutex_;
  std::deque<Part> parts_;
  std::vector<std::unique_ptr<uint8_t[]>> chunks_;
  size_t used_ = 0;  // chunks
};

// A list as a worker sees it. Owns nothing.
class ListTensor final : public Tensor {
 public:
  // The layout's blocks are the list's rows. sums: null if there is an `out`.
  ListTensor(const Layout& layout, const BlockList& list, ListedSums* sums);

  const std::vector<uint64_t>* listed() const override { return &list_.numbers; }
  bool nonzero(uint64_t) override {
    OMNIHVD_INVARIANT(!"a list is not searched");
    return false;
  }
  BlockRef read(uint64_t block, uint64_t position) override;
  void next_message() override { scratch_used_ = 0; }
  void write(uint64_t block, const BlockRef& sum) override;
  void write_zero(uint64_t block) override;
  bool wants_zeros() const override { return out_ != nullptr; }

 private:
  const BlockList& list_;
  const BlockOps& ops_;
  const size_t row_bytes_, element_;
  uint8_t* const out_;
  ListedSums* const sums_;
  ListedSums::Part* const part_;
  std::vector<uint8_t> scratch_;  // packed blocks of one message
  size_t scratch_used_ = 0;
};

}  // namespace omnihvd
