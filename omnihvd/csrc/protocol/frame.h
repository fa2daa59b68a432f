// The in-memory form of what workers and aggregators tell each other about one slot.
//
// The algorithm is OmniReduce's (SIGCOMM 2021, section 3), with a longer look-ahead. Each slot sums
// a stream of blocks, window by window. In round r the window is [lo, hi):
//   contribution  a worker's non-zero blocks in the window, and the next non-zero positions that it
//                 has found beyond those named before; it has named all below `bound`
//   result        the sums of all blocks of the window that any worker had, sent to all workers;
//                 `bound` is the hi of the next window, and this window's hi is its lo
// The aggregator knows which blocks each worker has below the smallest of the workers' bounds. So
// it chooses the next window to hold exactly as many blocks as its memory has room for, and only
// the workers that have something in the window speak in the next round. In the paper each block
// names one next block; naming many lets a window be full even if non-zero blocks are rare: a slot
// takes at most 2 + (blocks that any worker has) / window + positions / scan_ahead rounds.
//
// In round 0 the window is the first positions of the stream, and every worker speaks.
//
// In integer sums (arithmetic.h) a block's scale must be known before the block is sent. So its
// exponent travels a round ahead, as in SwitchML: with each position a worker names the exponent of
// its block there, and a result holds, for each block of the next window, the largest exponent of
// all workers. The window of round 0 is empty then.
//
// In a reduce (Shape::owner) the sums stay with the aggregator, which is in the owner's process.
// All others only learn how many sums there are, and the next window.
#pragma once

#include <cstdint>
#include <vector>

namespace omnihvd {

constexpr uint64_t kEnd = UINT64_MAX;  // a bound: nothing more follows

struct BlockRef {
  uint64_t position;
  const uint8_t* data;  // not owned
  uint32_t bytes;
  bool packed;  // as in block_ops.h; else the plain elements, unless listed or coded
  // Only in contributions to the aggregator of the same process: where the worker wants the sum. An
  // aggregator may use it as its accumulator, and its result then refers to it.
  uint8_t* home = nullptr;
  // Only in received blocks: if not null, the block is listed (block_ops.h), and `data` holds the
  // elements at these offsets. Not owned.
  const uint32_t* offsets = nullptr;
  // As in codec.h, by the coding of contributions or of sums; in integer sums, as in arithmetic.h.
  bool coded = false;
  uint8_t exponent = 0;  // in integer sums, at workers: known from the last round, not sent
};

struct Frame {
  uint32_t slot = 0;
  uint32_t round = 0;
  uint64_t bound = kEnd;
  // Contributions: the blocks are exactly those that this worker has named in the window, so the
  // aggregator knows their positions.
  bool as_named = false;
  std::vector<BlockRef> blocks;  // positions ascend strictly
  std::vector<uint64_t> ahead;  // ascend strictly; in contributions, and in integer sums in results
  // In integer sums: the exponents of the blocks `ahead`, which in a result are the blocks of the
  // next window.
  std::vector<uint8_t> exponents;
  // In place of the blocks, in a result for a process that does not get the sums: how many there
  // are.
  uint32_t kept = 0;

  // Workers look ahead, one stripe at a time, until they have found a window's blocks.
  static constexpr uint64_t most_ahead(uint32_t window) { return 2 * uint64_t(window); }

  void clear(uint32_t new_slot, uint32_t new_round) {
    slot = new_slot;
    round = new_round;
    bound = kEnd;
    as_named = false;
    blocks.clear();
    ahead.clear();
    exponents.clear();
    kept = 0;
  }

  // The result for those that do not get the sums.
  Frame without_sums() const {
    Frame told;
    told.clear(slot, round);
    told.bound = bound;
    told.ahead = ahead;
    told.exponents = exponents;
    told.kept = uint32_t(blocks.size());
    return told;
  }
};

}  // namespace omnihvd
