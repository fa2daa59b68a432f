// Sums of ranks that share a host's memory: nothing is sent, and nothing is handed to a thread.
//
// The tensor is summed in chunks. For each, a rank copies its non-zero blocks to its own part of
// the common memory; adds, of a share of the blocks, what the ranks have there; and copies the sums
// of all shares to its tensor. A block that a single rank has is not added but taken from there.
// Chunks are small enough to stay in the processor's cache, where they are read by the others.
//
// This is the same sum as the engine's: zero blocks cost an inspection, half precision is added in
// float32, and the order of additions depends on nothing but the ranks and the tensor's size.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/own_process.h"
#include "protocol/codec.h"
#include "protocol/dtype.h"
#include "session/session.h"
#include "session/settings.h"
#include "shared/layout.h"
#include "shared/segment.h"

namespace omnihvd {

// One thread at a time, the calls in the same order on all ranks.
class SharedSum {
 public:
  struct Blocks {  // of a tensor: from, up to
    uint64_t first = 0, end = UINT64_MAX;
    bool has(uint64_t block) const { return block >= first && block < end; }
  };

  // Collective over ranks that are all on `host`. Null, on all ranks alike, when they have no
  // memory in common, or blocks are too large; `*obstacle` then says why. Throws Error when the
  // exchange fails. numbers: what messages call the ranks; empty: as the exchange numbers them.
  static std::unique_ptr<SharedSum> create(Exchange& exchange, const Settings& agreed,
                                           const std::string& host, std::string* obstacle,
                                           std::vector<int> numbers = {});
  // The others see that this rank has left, if they wait for it.
  ~SharedSum();

  // Collective: out = the sum over the ranks of `in` (in == out: in place). Returns how many blocks
  // were non-zero on any rank. Throws Error when a rank has failed, ended, or does not come within
  // OMNIHVD_TIMEOUT; `out` is then undefined, and each later call throws at once.
  // codec: the same on all ranks; the sum is what it would be if it were sent.
  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype,
                     const Codec& codec = {});

  // The same in two calls, between which a rank changes its part, of blocks; the parts make up the
  // tensor. reduce_scatter: what ranks give is coded, and their sum is not; out has the sums of
  // this rank's part, and elsewhere nothing of use; has[block], of all blocks, is set to whether
  // any rank has something there, and else left alone. has: null where no allgather follows.
  uint64_t reduce_scatter(const void* in, void* out, uint64_t count, DType dtype,
                          const Codec& codec, Blocks part, uint8_t* has);
  // Hands round what the parts have become. Only where `has` is set may there be something in this
  // rank's part, or be something to overwrite in the others'; fill: there is everywhere.
  uint64_t allgather(void* out, uint64_t count, DType dtype, Blocks part, const uint8_t* has,
                     bool fill);

  // Of the sums from now on, instead of OMNIHVD_TIMEOUT; 0: none.
  void set_timeout(double seconds) { timeout_s_ = seconds; }

  // This rank cannot go on: the others' calls throw Error(why). Its own next call, too.
  void abort(const std::string& why) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Sum;
  struct Chunk;

  SharedSum(std::unique_ptr<Segment> segment, int rank, int ranks, const Settings& settings,
            const std::string& host, std::vector<int> numbers);

  uint64_t run(const Sum& sum, bool count);
  enum Form : uint8_t { kNothing, kPacked, kDense };  // of a rank's block
  Form code(const Sum& sum, Coding coding, uint32_t who, uint64_t number, bool may_pack,
            const uint8_t* block, size_t bytes, uint8_t* out, uint64_t receivers);
  uint64_t give(const Sum& sum, const Chunk& chunk);
  void would_send(const Sum& sum, const uint8_t* block, size_t bytes, uint64_t receivers);
  void count_between_hosts();
  std::pair<uint32_t, uint32_t> share(const Chunk& chunk) const;
  void add(const Sum& sum, const Chunk& chunk);
  uint64_t take(const Sum& sum, const Chunk& chunk);

  // What all have done with a chunk: each is a gate.
  enum Step { given, added };
  void announce(Step step, uint64_t chunk);
  void wait(Step step, uint64_t chunk);
  void look_after_others(Step step, uint64_t chunk, double seconds, bool* warned);
  void check_same();
  [[noreturn]] void fail(const std::string& why);
  void throw_if_failed() const;
  std::string name_of(int rank) const;
  uint32_t number_of(int rank) const;

  SharedRank& of(int rank) const;
  uint8_t* flags(int rank, uint64_t chunk) const;  // [block] has something
  uint16_t* holders(uint64_t chunk) const;         // [block] the rank whose part has the sum
  uint8_t* data(int rank, uint64_t chunk) const;   // the blocks, each at its place

  const OwnProcess process_;
  const std::unique_ptr<Segment> segment_;
  const SharedLayout layout_;
  SharedControl& control_;
  const int rank_, ranks_;
  const Settings settings_;
  double timeout_s_;
  const std::string host_;
  const std::vector<int> numbers_;
  const std::chrono::microseconds spin_;
  uint64_t next_chunk_ = 0;                           // of all sums
  uint64_t would_send_ = 0, counted_would_send_ = 0;  // by this rank; by the fullest, as counted
  uint64_t weighed_ = 0;                              // blocks
  double packed_share_ = 1;                           // of the last block that was looked into
  std::vector<uint8_t> accumulator_;
};

}  // namespace omnihvd
