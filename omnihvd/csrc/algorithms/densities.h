// Predicts from earlier sums which fraction of a tensor's blocks is non-zero on any rank.
//
// A training step sums more or less the same tensors as the step before, but Horovod may fuse them
// differently. So a sum is identified by its count and dtype. An unknown sum is taken to be like
// others of about its size, if those agree. A density that has lasted may change once, as when a
// job turns to other data. If it changes again at once, tensors of one count differ, and nothing is
// known of them.
//
// Pure. Its inputs are the same on all ranks, so all ranks predict the same.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "numeric/dtype.h"

namespace omnihvd {

// Density classes. Their upper bounds: 1/256, 1/32, 1/8, 1/3, 2/3, 1.
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
    // It is time to measure: algorithms that do not inspect the tensor have told nothing for a
    // while.
    bool look = false;
  };
  // Predicts the next sum, which begins now.
  Guess guess(uint64_t count, DType dtype);
  // Records the density of the sum guessed last. Not called if its algorithm has not told it.
  void learn(int density);

 private:
  struct History {
    int density = kUnknown;
    uint32_t alike = 0;     // so many of the last sums had it
    bool trusted = false;   // it is the first, it came twice, or the one before it did
    uint32_t unseen = 0;    // sums since it was learnt
    uint32_t patience = 3;  // measure again after so many
    void learn(int told);
  };
  using Tensor = std::pair<uint64_t, DType>;

  static constexpr size_t kRemembered = 4096;
  std::map<Tensor, History> tensors_;
  std::array<History, kSizes> sizes_;
  Tensor last_{};
};

}  // namespace omnihvd
