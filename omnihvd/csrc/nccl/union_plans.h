// Decides which sums of a communicator are made on the union of their blocks, and with what
// capacity.
//
// A plan is a capacity, the number of blocks of the union that are summed, and a number of levels.
// A capacity of 0 means that NCCL makes the call. Ranks must have the same plan for the same call,
// but each may be any distance ahead of the others, and of its GPU. So rank 0 proposes a change for
// calls from a number on that it expects no rank to have reached. Each rank votes on whether it has
// reached that call; the change holds if none has. A rank that reaches such a call after its vote,
// but before the votes are counted, waits for the count. Only threads of the ranks that wait for no
// calls and no GPU (union_way.h) take part in the count, so the wait lasts microseconds.
//
// Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "numeric/dtype.h"

namespace omnihvd {

struct UnionChange {
  uint32_t sum;  // which: see UnionCall
  uint64_t capacity;
  bool two_levels = false;
};

struct UnionProposal {
  uint64_t from = 0;  // the first call to which it applies
  std::vector<UnionChange> changes;
};

struct UnionCall {
  uint64_t number;    // of the communicator's calls, from 0 on
  uint32_t sum;       // which sum of a training step; kNone: an unknown one
  uint64_t capacity;  // blocks; 0: NCCL makes the call
  bool look;          // its blocks must be marked, even if NCCL makes it
  bool two_levels;    // the union is reduced inside the hosts, and then between them
};

class UnionPlans {
 public:
  static constexpr uint32_t kNone = ~0u;
  // whole: unknown sums are made on the union, with room for all blocks; otherwise NCCL makes them.
  explicit UnionPlans(uint32_t block_size, bool whole, bool two_levels = false)
      : block_size_(block_size), whole_(whole), two_levels_(two_levels) {}

  // The plan of the next call, on a tensor of so many elements. A sum is identified by its count,
  // its type and the counts of the two sums before it. Returns nothing if a vote must be counted
  // first; otherwise the call counts as made.
  std::optional<UnionCall> next(uint64_t count, DType dtype);
  uint64_t calls() const { return calls_; }  // made so far

  // Votes on a proposal, which is the same on all ranks, one at a time: whether it comes in time on
  // this rank.
  bool vote(const UnionProposal& proposal);
  void count_votes(bool all_in_time);

 private:
  static constexpr size_t kMost = 4096;     // known sums; NCCL makes all others
  static constexpr uint64_t kBetween = 32;  // calls between two looks
  using Key = std::tuple<uint64_t, DType, uint64_t, uint64_t>;
  struct Plan {
    uint64_t from, capacity;
    bool two_levels;
  };
  struct Known {
    std::deque<Plan> plans;  // the first one is in use
    uint64_t calls = 0;
  };

  const uint32_t block_size_;
  const bool whole_, two_levels_;
  std::map<Key, uint32_t> numbers_;
  std::vector<Known> known_;
  uint64_t before_[2] = {0, 0}, calls_ = 0;
  std::optional<UnionProposal> proposed_;
  bool in_time_ = false;
};

}  // namespace omnihvd
