// The steps of a small sum, and the stamps by which its ranks meet. Pure: the tests run these
// tables through all interleavings (tests/shared/interleavings.cc).
//
// Each rank has a part of the shared memory with two buffers, which its sums use in turn, and two
// stamps. It gives its elements in a buffer and stamps `given` with the number of the call; once
// all ranks have, it adds. The smallest sums each rank adds whole. In a larger one it adds a share
// in place, in its own buffer, stamps `added`, and takes the other shares once all ranks have.
//
// Two buffers are enough: a rank gives in the buffer of the last sum but one, and before it ended
// the last sum, all ranks had stamped that sum's `given`, after they had read what they needed of
// the one before. So a rank needs no third stamp for what it has read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace omnihvd {

enum class Stamp : uint8_t { none, given, added };
enum class SmallWork : uint8_t { give, add, take };

struct SmallStep {
  Stamp awaited;  // of all ranks, before the work
  SmallWork work;
  Stamp stamped;  // after the work; in the last step none
};

constexpr std::array<SmallStep, 2> kWholeSteps{{
    {Stamp::none, SmallWork::give, Stamp::given},
    {Stamp::given, SmallWork::add, Stamp::none},
}};
constexpr std::array<SmallStep, 3> kSharedSteps{{
    {Stamp::none, SmallWork::give, Stamp::given},
    {Stamp::given, SmallWork::add, Stamp::added},
    {Stamp::added, SmallWork::take, Stamp::none},
}};

constexpr size_t kSmallBuffers = 2;
constexpr size_t buffer_of(uint64_t sum) { return sum % kSmallBuffers; }

// Does each rank add all of it? The same on all ranks. Then a rank reads (ranks - 1) times the
// bytes of other ranks; by shares it reads twice the bytes at most, but waits once more.
constexpr bool is_added_whole(uint64_t bytes, int ranks) {
  return ranks == 2 || bytes * uint64_t(ranks) <= (64 << 10);
}

// The bytes [begin, end) that a rank adds. Shares have whole cache lines.
struct SmallShare {
  uint64_t begin, end;
};
constexpr SmallShare share_of(uint64_t bytes, int rank, int ranks) {
  constexpr uint64_t line = 64;
  const uint64_t lines = (bytes + line - 1) / line;
  const uint64_t begin = lines * uint64_t(rank) / uint64_t(ranks) * line;
  const uint64_t end = lines * uint64_t(rank + 1) / uint64_t(ranks) * line;
  return {begin < bytes ? begin : bytes, end < bytes ? end : bytes};
}

}  // namespace omnihvd
