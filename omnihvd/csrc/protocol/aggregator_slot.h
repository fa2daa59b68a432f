// The state that an aggregator keeps for each of its slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/error.h"
#include "protocol/aggregator.h"

namespace omnihvd {

// The sum of one block, in progress.
struct Aggregator::Sum {
  bool present = false;     // some worker had this block
  bool dense = false;       // and some worker found it not worth packing
  uint8_t* home = nullptr;  // the sum is there, not in our accumulator
};

// Room for the sums of one round. Allocated on demand and not cleared: `of` says what is valid.
struct Aggregator::Version {
  std::unique_ptr<uint8_t[]> sums;    // [index in window][accumulator block]
  std::unique_ptr<uint8_t[]> packed;  // packed and coded results, back to back
  std::vector<Sum> of;                // [index in window]
  // In integer sums, by index in the window: the marks of NaN and infinities.
  std::map<size_t, std::vector<int32_t>> no_numbers;
  bool lent = false;  // a frame in flight refers to this memory
  uint32_t lent_round = 0;
};

struct Aggregator::Named {
  std::vector<uint64_t> ahead;     // ascending
  std::vector<uint8_t> exponents;  // of these, in integer sums
  size_t first = 0;                // entries from here on lie beyond the window
  uint64_t bound = 0;              // the worker has named all blocks below
};

struct Aggregator::Held {
  bool present = false;
  Frame frame;
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> offsets;
};

struct Aggregator::Slot {
  uint32_t number = 0;
  uint32_t round = 0;
  uint64_t lo = 0, hi = 0;
  std::vector<uint64_t> window;   // the blocks of this round; in round 0 all positions
  std::vector<uint64_t> pending;  // named beyond the window by any worker: ascending, distinct
  std::vector<uint64_t> fresh;    // named in this round, unsorted
  std::vector<Named> named;       // [worker]
  std::vector<uint8_t> awaited;   // [worker]
  uint32_t missing = 0;           // how many are awaited
  uint32_t first_awaited = 0;     // maintained if ordered
  std::vector<Held> held;         // [worker], if ordered
  bool result_ready = false;      // summed, but waits for the other version
  bool done = false;
  uint64_t said = 0;  // in a child aggregator: the parent knows all positions below
  Version versions[2];
  std::vector<Version> old;  // still lent when their place was needed
  Version& version() { return versions[round % 2]; }
  // Index in the window, `from` or later, of the first position that is not below this one.
  size_t find(size_t from, uint64_t position) const {
    while (from < window.size() && window[from] < position) ++from;
    return from;
  }

  void take_back(uint32_t of_round) {
    Version& version = versions[of_round % 2];
    if (version.lent && version.lent_round == of_round) {
      version.lent = false;
      return;
    }
    const auto found = std::find_if(old.begin(), old.end(), [of_round](const Version& one) {
      return one.lent_round == of_round;
    });
    OMNIHVD_INVARIANT(found != old.end());
    old.erase(found);
  }
};

}  // namespace omnihvd
