// Decides which sums of a communicator are made on the union of their blocks, and with what
// capacity: the number of the union's blocks that NCCL sums. 0: NCCL sums the tensor.
//
// All ranks must have the same plan for the same call, but each may be any distance ahead of the
// others, and of its GPU. A plan depends only on the earlier calls, and on the unions of those that
// are kBehind or more calls back: both are the same on all ranks, so the ranks need not talk.
// Before a rank makes a call, its own device must have come so far.
//
// Pure; one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>

#include "nccl/gpu_choice.h"
#include "numeric/dtype.h"

namespace omnihvd {

// Identifies sums that are alike.
using UnionKey = std::array<uint64_t, 4>;

struct UnionCall {
  uint64_t number;    // of the communicator's calls, from 0 on
  UnionKey key;       // of the plan
  uint64_t bytes;     // of the tensor
  uint64_t share;     // the capacity, as a share of the blocks: see UnionChoice
  uint64_t capacity;  // blocks; 0: NCCL makes the call
  bool look;          // its blocks must be marked, even if NCCL makes it
  GpuTimes times;     // measured on this rank: not the same on all ranks
};

class UnionPlans {
 public:
  // Calls until a union counts. A sum on the union queues about eight kernels, and CUDA's queue of
  // launches holds 1024: a program that makes calls far ahead of its device waits there as well.
  static constexpr uint64_t kBehind = 64;

  // always: as in UnionChoice.
  UnionPlans(const GpuModel& model, uint64_t block_size, uint64_t part_bytes, bool always)
      : model_(model), block_size_(block_size), part_bytes_(part_bytes), always_(always) {}

  // Whether the next call needs the union of an earlier one, which saw() must tell first.
  bool is_behind() const { return !looks_.empty() && looks_.front().number + kBehind <= calls_; }
  // The union of the oldest call with a look that has not been told: its blocks, and the trailer.
  void saw(uint64_t united, uint32_t trailer);

  // The plan of the next call, on a tensor of so many elements; the call counts as made.
  UnionCall next(uint64_t count, DType dtype);

  // This rank's times of a call that was measured.
  void took(const UnionCall& call, uint64_t look_ns, uint64_t sum_ns);

 private:
  static constexpr size_t kMost = 256;      // kinds of sums that are remembered
  static constexpr uint64_t kBetween = 32;  // calls between two looks
  static constexpr size_t kTimes = 4;
  struct Known {
    UnionChoice choice;
    uint64_t bytes;                                              // times are of this many
    uint64_t last;                                               // number of the last call
    uint64_t calls = 0;                                          // since NCCL makes them
    std::deque<uint64_t> look = {}, original = {}, united = {};  // this rank's last times
    uint64_t share = 0;                                          // that `united` is of
  };
  struct Look {
    uint64_t number, blocks, share, capacity;
    UnionKey used, other;
  };
  Known& at(const UnionKey& key, uint64_t bytes, uint64_t block_bytes);
  void tell(const UnionKey& key, const UnionChoice::Seen& seen);

  const GpuModel& model_;
  const uint64_t block_size_, part_bytes_;
  const bool always_;
  std::map<UnionKey, Known> known_;
  std::deque<Look> looks_;  // called, and not told
  uint64_t before_[2] = {0, 0}, calls_ = 0;
  bool left_ = false;  // to NCCL, for good
};

}  // namespace omnihvd
