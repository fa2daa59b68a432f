// Which sums of a communicator are made on the union of their blocks, and with room for how many.
//
// A plan is a capacity: so many blocks of the union are summed; none: the call is NCCL's; and on
// how many levels. Ranks
// must have the same plan for the same call, while each is as far ahead of the others, and of its
// GPU, as it likes. So a change is proposed by rank 0, for calls from a number on that no rank is
// expected to have reached; each rank votes whether it has; and it holds if none has. Who comes to
// such a call after its vote, and before the votes are counted, waits for that: for threads of the
// ranks that wait for nobody's calls and for no GPU (union_way.h), and so for microseconds.
//
// Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "protocol/dtype.h"

namespace omnihvd {

struct UnionChange {
  uint32_t sum;  // which: see UnionCall
  uint64_t capacity;
  bool two_levels = false;
};

struct UnionProposal {
  uint64_t from = 0;  // the first call for which it holds
  std::vector<UnionChange> changes;
};

struct UnionCall {
  uint64_t number;    // of the communicator's calls, from 0 on
  uint32_t sum;       // which one of a training step; kNone: not one that is known
  uint64_t capacity;  // blocks; 0: NCCL's own
  bool look;          // its blocks are to be marked, whoever makes it
  bool two_levels;    // the union is reduced inside the hosts, and then between them
};

class UnionPlans {
 public:
  static constexpr uint32_t kNone = ~0u;
  // whole: sums of which nothing is known are united, all of their blocks; else they are NCCL's.
  explicit UnionPlans(uint32_t block_size, bool whole, bool two_levels = false)
      : block_size_(block_size), whole_(whole), two_levels_(two_levels) {}

  // Of the next call, on a tensor of so many elements: known by that, its type and the sizes of the
  // two before it. None: a vote must be counted first. Else that call has been made.
  std::optional<UnionCall> next(uint64_t count, DType dtype);
  uint64_t calls() const { return calls_; }  // made so far

  // Of a proposal, the same on all ranks and one at a time: whether it comes in time here.
  bool vote(const UnionProposal& proposal);
  void count_votes(bool all_in_time);

 private:
  static constexpr size_t kMost = 4096;     // sums that are known; others are NCCL's
  static constexpr uint64_t kBetween = 32;  // calls between two looks
  using Key = std::tuple<uint64_t, DType, uint64_t, uint64_t>;
  struct Plan {
    uint64_t from, capacity;
    bool two_levels;
  };
  struct Known {
    std::deque<Plan> plans;  // the first is in use, or the only one
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
