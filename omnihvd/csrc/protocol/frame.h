// What workers and aggregators say to each other about one slot, in memory.
//
// The algorithm is that of OmniReduce (SIGCOMM 2021, section 3), with a longer look-ahead. Each
// slot sums a stream of blocks, window by window. In round r the window is [lo, hi):
//   contribution  a worker's non-zero blocks in the window, and the next non-zero positions that it
//                 has found beyond those named before; it has named all below `bound`
//   result        the sums of all blocks of the window that anybody had, sent to all workers;
//                 `bound` is the hi of the next window, whose lo is this hi
// As the aggregator knows which blocks each worker has below the smallest of the workers' bounds,
// it chooses the next window to hold exactly as many blocks as its memory has room for, and only
// the workers that have something in the window speak in the next round. The paper's blocks name
// one next block each; naming many lets a window be full even where non-zero blocks are rare: a
// slot takes at most 2 + (blocks that anybody has) / window + positions / scan_ahead rounds.
//
// Round 0 has the first positions of the stream as its window, and every worker speaks.
//
// Where sums are of integers (integers.h) the scale of a block must be known before it is sent. So
// its exponent travels a round ahead, as in SwitchML: with the position that a worker names goes
// the exponent of what it has there, and with a result the largest of all workers for each block of
// the next window. The window of round 0 is empty then.
//
// In a reduce (Shape::owner) the sums stay with the aggregator, which is in the process of who gets
// them: the others are told how many there are, and the next window.
#pragma once

#include <cstdint>
#include <vector>

namespace omnihvd {

constexpr uint64_t kEnd = UINT64_MAX;  // a bound: nothing more is to come

struct BlockRef {
  uint64_t position;
  const uint8_t* data;  // not owned
  uint32_t bytes;
  bool packed;  // as in block_ops.h; else the plain elements, unless listed or coded
  // Contributions to the aggregator of the same process only: where the worker wants the sum. An
  // aggregator may use it as its accumulator, and its result then refers to it.
  uint8_t* home = nullptr;
  // Received blocks only: if not null, the block is listed (block_ops.h), and `data` holds the
  // elements at these offsets. Not owned.
  const uint32_t* offsets = nullptr;
  // As in codec.h, by the coding of contributions or of sums; where sums are of integers, as in
  // integers.h.
  bool coded = false;
  uint8_t exponent = 0;  // of integers, at workers: known from the last round, and not sent
};

struct Frame {
  uint32_t slot = 0;
  uint32_t round = 0;
  uint64_t bound = kEnd;
  // Contributions: the blocks are those that this worker has named in the window, all of them, so
  // that the aggregator knows their positions.
  bool as_named = false;
  std::vector<BlockRef> blocks;  // positions ascend strictly
  std::vector<uint64_t> ahead;   // ascend strictly; contributions only, but for those below
  // Where sums are of integers: of the blocks `ahead`, which in a result are those of the next
  // window.
  std::vector<uint8_t> exponents;
  // In place of the blocks, of a result that is told to who does not get the sums: how many.
  uint32_t kept = 0;

  // Workers look ahead until they have found a window's blocks, a stripe at a time.
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

  // Of a result.
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
