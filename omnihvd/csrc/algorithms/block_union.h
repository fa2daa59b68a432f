// Finds, compacts and scatters the union of the ranks' non-zero blocks. Independent of any library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "numeric/dtype.h"

namespace omnihvd {

// Keeps its memory from one sum to the next. One thread at a time.
class BlockUnion {
 public:
  // Marks the non-zero blocks of a tensor: one bit a block in bits(). -0.0 counts as zero, as
  // everywhere: in place (in == out), blocks that hold nothing but zeros are cleared.
  void find(const void* in, void* out, uint64_t count, DType dtype, uint32_t block_size);

  // This rank's marks after find(); those of the union once the ranks' bits are united.
  std::vector<uint8_t>& bits() { return bits_; }
  uint64_t blocks() const { return blocks_; }
  uint64_t marked() const;    // blocks
  uint64_t elements() const;  // of the marked blocks

  // The elements of the marked blocks, one block after the other. Valid until the next find().
  uint8_t* compact();
  // Writes the sums of the marked blocks, in the layout of compact(), to `out`. Out of place, it
  // also writes zeros between them.
  void scatter();

 private:
  template <typename Visit>
  void for_each_marked(Visit visit) const;
  uint32_t bytes_of(uint64_t block) const;

  const uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  uint64_t count_ = 0, blocks_ = 0;
  size_t element_ = 0, block_bytes_ = 0;
  std::vector<uint8_t> bits_;
  std::unique_ptr<uint8_t[]> buffer_;
  size_t capacity_ = 0;
};

}  // namespace omnihvd
