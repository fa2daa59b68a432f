// What share of a tensor's blocks is likely to be non-zero on any rank, from sums that were made.
//
// A training step sums the same tensors as the step before, more or less: Horovod may fuse them
// differently. So a sum is known by its count and dtype; one that is not known is like others of
// about its size, if those agree; and where tensors of one count differ, nothing is known of them.
//
// Pure, and fed with what all ranks know alike, so that all guess alike.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "protocol/dtype.h"

namespace omnihvd {

// Shares are told apart by these classes: up to 1/256, 1/32, 1/8, 1/3, 2/3, 1.
constexpr int kDense = 5;    // the last
constexpr int kUnknown = 6;  // no share: nothing is known
constexpr int kDensities = 7;
int density_class(uint64_t united_blocks, uint64_t blocks);

// About half a power of two wide; 0 .. 127.
int size_class(uint64_t bytes);
constexpr int kSizes = 128;

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
  struct History {
    int density = kUnknown;
    bool changed = false;   // ever
    uint32_t alike = 0;     // so many of the last were of that
    uint32_t unseen = 0;    // sums since it was learnt
    uint32_t patience = 3;  // look again after so many
    void learn(int told);
  };
  using Tensor = std::pair<uint64_t, DType>;

  static constexpr size_t kRemembered = 4096;
  std::map<Tensor, History> tensors_;
  std::array<History, kSizes> sizes_;
  Tensor last_{};
};

}  // namespace omnihvd
