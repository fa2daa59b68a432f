// What share of a tensor's blocks is likely to be non-zero on any rank, from sums that were made.
//
// A training step sums the same tensors in the same order as the step before, more or less: Horovod
// may fuse them differently. So a sum is known by its size and dtype and by the sizes of the two
// sums before it; one that is not known is like others of about its size, if those agree.
//
// Pure, and fed with what all ranks know alike, so that all guess alike.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <tuple>

#include "protocol/dtype.h"

namespace omnihvd {

// Shares are told apart by these classes: up to 1/256, 1/32, 1/8, 1/3, 2/3, 1.
constexpr int kDense = 5;    // the last
constexpr int kUnknown = 6;  // no share: nothing is known
constexpr int kDensities = 7;
int density_class(uint64_t united_blocks, uint64_t blocks);

class Densities {
 public:
  struct Guess {
    int density = kUnknown;
    // It is time to find out: ways that need not look at the tensor have told nothing for a while.
    bool look = false;
  };
  // Of the next sum, which begins now.
  Guess guess(uint64_t count, DType dtype);
  // Of the sum that was guessed last; not called where its way has not told.
  void learn(int density);

 private:
  using Key = std::tuple<uint64_t, DType, uint64_t, uint64_t>;  // and the two counts before
  struct Known {
    int density = kUnknown;
    uint32_t unseen = 0;    // sums since it was learnt
    uint32_t patience = 8;  // look again after so many
    std::list<Key>::iterator used;
  };
  struct Size {  // sums of about one size
    std::array<int, 4> last{kUnknown, kUnknown, kUnknown, kUnknown};
    uint32_t unseen = 0, patience = 8;
  };
  Guess guess_by_size(Size& size);

  static constexpr size_t kRemembered = 4096;
  std::map<Key, Known> known_;
  std::list<Key> by_use_;  // the least recently used is first
  std::map<int, Size> sizes_;
  Key last_{};
  int last_size_ = 0;
  uint64_t before_[2] = {0, 0};
};

// About half a power of two wide; 0 .. 127.
int size_class(uint64_t bytes);
constexpr int kSizes = 128;

}  // namespace omnihvd
