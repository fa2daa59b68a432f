// Decides whether sums of one kind are made on the union of their blocks, and with what capacity:
// from a cost model, from measured times (NCCL's among them), and from the sizes of earlier unions.
//
// Pure, in integers. All ranks see the same unions and times, in the same order, so they decide
// alike.
#pragma once

#include <cstdint>
#include <deque>

#include "nccl/gpu_model.h"

namespace omnihvd {

// The times of a kind of sums, in nanoseconds; 0: not known.
struct GpuTimes {
  uint64_t look = 0;      // to find the union
  uint64_t original = 0;  // NCCL's sum of the tensor, after the look
  uint64_t united = 0;    // the sum on the union, after the look
};

// The trailer of the marks: a byte that says that this rank's host thread has ended, and a byte for
// each time, by its logarithm. The ranks take the maximum of each byte. So they get the slowest
// rank's times of sums, and the fastest rank's look: the others have waited for a late rank.
uint32_t trailer_of(bool alone, const GpuTimes& times);
bool is_alone(uint32_t trailer);
GpuTimes times_of(uint32_t trailer);

class UnionChoice {
 public:
  static constexpr uint64_t kWhole = 1 << 16;  // shares are in units of 1 / kWhole

  // For sums of about so many bytes. always: on the union, unless nearly all blocks are in it, and
  // with room for all blocks at first; else only where that is faster.
  UnionChoice(const GpuModel& model, uint64_t bytes, uint64_t block_bytes, uint64_t part_bytes,
              bool always);

  // The capacity, as a share of the blocks; 0: NCCL sums the tensor.
  uint64_t share() const { return share_; }

  struct Seen {
    uint64_t united;  // a share of the blocks
    uint64_t share;   // the capacity; or, if this choice did not decide it, kNoShare
    bool overflowed;  // the union was larger
    GpuTimes times;
  };
  static constexpr uint64_t kNoShare = ~uint64_t(0);
  void saw(const Seen& seen);
  bool is_known() const { return seen_ >= kKnown; }

 private:
  static constexpr uint64_t kKnown = 2;
  uint64_t wanted() const;
  bool pays(uint64_t share) const;

  const GpuModel& model_;
  const uint64_t bytes_, blocks_, part_bytes_;
  const bool always_;
  uint64_t share_, seen_ = 0;
  GpuTimes times_;
  std::deque<uint64_t> united_;  // the last ones
  std::deque<bool> overflowed_;  // of the last sums on the union
  uint32_t barred_ = 0;          // looks until it may be united again
};

}  // namespace omnihvd
