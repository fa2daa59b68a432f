// Sums of ranks that share a host's memory: nothing is sent, and no other thread is involved.
//
// The tensor is summed in chunks. For each chunk a rank copies its non-zero blocks to its own part
// of the shared memory; adds, for its share of the blocks, what the ranks have there; and copies
// the sums of all shares to its tensor. A block that a single rank has is not added but taken from
// that rank's part. Chunks are small enough to stay in the processor's cache, where the other ranks
// read them.
//
// The sum is the same as the engine's: zero blocks cost an inspection, half precision is added in
// float32, and the order of additions depends on nothing but the ranks and the tensor's size.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/shared_memory/layout.h"
#include "algorithms/shared_memory/peers.h"
#include "algorithms/shared_memory/segment.h"
#include "algorithms/shared_memory/stores.h"
#include "base/own_process.h"
#include "engine/session.h"
#include "engine/settings.h"
#include "numeric/codec.h"
#include "numeric/dtype.h"

namespace omnihvd {

// One thread at a time; all ranks make the same calls in the same order.
class SharedSum {
 public:
  struct Blocks {  // of a tensor: begin and end
    uint64_t first = 0, end = UINT64_MAX;
    bool has(uint64_t block) const { return block >= first && block < end; }
  };

  // Collective over ranks that are all on `host`. Null, on all ranks alike, if they cannot share
  // memory, or blocks are too large; `*obstacle` then says why. Throws Error if the exchange fails.
  // numbers: how messages number the ranks; empty: as the exchange does.
  static std::unique_ptr<SharedSum> create(Exchange& exchange, const Settings& agreed,
                                           const std::string& host, std::string* obstacle,
                                           std::vector<int> numbers = {});
  // Ranks that wait for this one see that it has left.
  ~SharedSum();

  // Collective: out = the sum over the ranks of `in` (in == out: in place). Returns how many blocks
  // were non-zero on any rank. Throws Error if a rank has failed, ended, or is later than
  // OMNIHVD_TIMEOUT; `out` is then undefined, and each later call throws at once.
  // codec: the same on all ranks; the sum is what it would be if it were sent.
  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype,
                     const Codec& codec = {});

  // The same in two calls; in between a rank changes its part, a range of blocks. The parts make up
  // the tensor. reduce_scatter: codes what ranks give, but not their sum. out holds the sums of
  // this rank's part, and nothing useful elsewhere; has[block], for all blocks, is set if any rank
  // has something there, and else left alone. has: null if no allgather follows.
  uint64_t reduce_scatter(const void* in, void* out, uint64_t count, DType dtype,
                          const Codec& codec, Blocks part, uint8_t* has);
  // Distributes the changed parts. Only where `has` is set may this rank's part hold something, or
  // the other parts hold something to overwrite; fill: that may be everywhere.
  uint64_t allgather(void* out, uint64_t count, DType dtype, Blocks part, const uint8_t* has,
                     bool fill);

  // The time-out of sums from now on, instead of OMNIHVD_TIMEOUT; 0: none.
  void set_timeout(double seconds) { peers_.set_timeout(seconds); }

  // This rank cannot continue: the other ranks' calls throw Error(why), and so does its own next
  // call.
  void abort(const std::string& why) noexcept { peers_.abort(why); }

 private:
  struct Sum;
  struct Chunk;

  SharedSum(std::unique_ptr<Segment> segment, Exchange& exchange, const Settings& settings,
            const std::string& host, std::vector<int> numbers, bool core_each);

  uint64_t run(const Sum& sum, bool count);
  enum Form : uint8_t { kNothing, kPacked, kDense };  // the form of a rank's block
  Form code(const Sum& sum, Coding coding, uint32_t who, uint64_t number, bool may_pack,
            const uint8_t* block, size_t bytes, uint8_t* out, uint64_t receivers);
  uint64_t give(const Sum& sum, const Chunk& chunk);
  size_t share_out(uint8_t* to, const uint8_t* from, size_t bytes) const;
  void would_send(const Sum& sum, const uint8_t* block, size_t bytes, uint64_t receivers);
  void count_between_hosts();
  std::pair<uint32_t, uint32_t> share(const Chunk& chunk) const;
  void add(const Sum& sum, const Chunk& chunk);
  uint64_t take(const Sum& sum, const Chunk& chunk);

  // The steps that all ranks must complete for a chunk: each has a gate.
  enum Step { given, added };
  void announce(Step step);
  void wait(Step step, uint64_t chunk);
  void check_same();

  SharedRank& of(int rank) const;
  uint8_t* flags(int rank, uint64_t chunk) const;  // [block] the rank has something
  uint16_t* holders(uint64_t chunk) const;         // [block] the rank with the sum in its part
  uint8_t* data(int rank, uint64_t chunk) const;   // the blocks, each in its place

  const OwnProcess process_;
  const std::unique_ptr<Segment> segment_;
  const SharedLayout layout_;
  SharedControl& control_;
  const int rank_, ranks_;
  const Settings settings_;
  Peers peers_;
  const std::chrono::microseconds spin_;
  uint64_t next_chunk_ = 0;                           // over all sums
  uint64_t would_send_ = 0, counted_would_send_ = 0;  // by this rank; by the busiest, as counted
  uint64_t weighed_ = 0;                              // blocks
  double packed_share_ = 1;                           // of the last block examined
  std::vector<uint8_t> accumulator_;
  Stores stores_;
  bool past_caches_ = false;  // the stores of the chunk that this rank has given last
};

}  // namespace omnihvd
