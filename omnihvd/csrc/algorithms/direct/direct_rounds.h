// A direct sum: ranks send each other the non-zero blocks of a small tensor, without an aggregator
// that is told what comes next. Pure: messages come in any order of ranks, and go to an outbox.
//
// Each rank owns a share of the blocks. It gives each other rank the blocks of that rank's share,
// adds the shares that it is given in rank order, so that all ranks get the same bits, and sends
// the results to all. Two ranks, and any number if the tensor is tiny, give all blocks to each
// other instead and add them all: that saves a round, and sends as much between two. The blocks of
// a message are those of a range that are not zero. Messages from one rank come in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/small_call.h"

namespace omnihvd {

// At the head of a message; little endian, 8-byte aligned. A bitmap of `bitmap` bytes, a multiple
// of 8, follows, one bit for each block of the range, and the blocks with a set bit.
struct DirectHeader {
  enum Kind : uint32_t { give, result, pass, last, hello, failure, leave };
  uint8_t token[16];      // the group's
  uint64_t number;        // of the call
  uint64_t call;          // a SmallCall
  uint32_t kind, from;    // from: the rank
  uint32_t first, count;  // of blocks
  uint32_t bitmap, unused;
};

class DirectRounds {
 public:
  static constexpr size_t kMessage = 62 << 10;     // bytes, at most
  static constexpr uint32_t kMostBlock = 4 << 10;  // elements

  class Outbox {
   public:
    virtual ~Outbox() = default;
    // Room for a message of kMessage bytes, with the token in its header.
    virtual uint8_t* room() = 0;
    // Sends the first `bytes` of the last room(), which may go to several ranks.
    virtual void send(int rank, size_t bytes) = 0;
  };

  // block: elements, at most kMostBlock. outbox: outlives this object.
  DirectRounds(int rank, int ranks, uint32_t block, Outbox& outbox)
      : rank_(rank), ranks_(ranks), block_(block), outbox_(outbox), peers_(size_t(ranks)) {
    for (int step = 1; step < ranks; ++step) others_.push_back((rank + step) % ranks);
  }

  // in == out: in place. Both must live until the sum is complete.
  void begin(const void* in, void* out, SmallCall call, uint64_t number);
  // A give or a result of this call, of `size` bytes. Returns false if it does not fit: then the
  // sum cannot go on.
  bool take(const DirectHeader& message, size_t size);

  bool complete() const { return gives_left_ == 0 && results_left_ == 0; }
  bool lacks(int rank) const;  // what keeps this rank waiting now
  SmallCall call() const { return call_; }
  uint32_t blocks() const { return blocks_; }
  uint64_t nonzero_blocks() const { return nonzero_; }
  uint64_t united_blocks() const { return united_; }

 private:
  struct Range {
    uint32_t begin, end;
  };
  struct Peer {
    uint32_t given, result;  // the next block that is to come
  };
  Range share_of(int rank) const;
  Range results_of(int rank) const { return whole_ ? Range{blocks_, blocks_} : share_of(rank); }
  size_t bytes_of(uint32_t block) const;
  template <typename NonZero>
  uint64_t send(DirectHeader::Kind kind, Range range, const uint8_t* from, NonZero nonzero,
                const std::vector<int>& to);
  void send_mine(DirectHeader::Kind kind, const uint8_t* from);
  size_t staged(int rank, uint32_t block) const;
  void add();

  const int rank_, ranks_;
  const uint32_t block_;
  Outbox& outbox_;

  const uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  SmallCall call_;
  uint64_t number_ = 0;
  uint32_t blocks_ = 0;
  size_t block_bytes_ = 0;
  bool whole_ = false;  // each rank owns all
  Range mine_{};
  std::vector<Peer> peers_;
  int gives_left_ = 0, results_left_ = 0;  // ranks
  std::vector<int> others_;                // in the order of this rank's sends
  uint64_t nonzero_ = 0, united_ = 0;
  std::vector<uint8_t> staging_;  // what this rank was given: of each rank its share's blocks
  // For each such block: it is not zero. At this rank's place: of its own, and then of the sum.
  std::vector<uint8_t> is_staged_;
  std::vector<uint8_t> sums_;  // of a block
};

}  // namespace omnihvd
