// Makes the sums of one communicator, each with the algorithm that has been fastest for its like.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/call.h"
#include "algorithms/densities.h"
#include "algorithms/library.h"
#include "algorithms/policy.h"
#include "base/way.h"
#include "engine/settings.h"
#include "engine/stats.h"
#include "numeric/codec.h"
#include "numeric/dtype.h"

namespace omnihvd {

// Finds, compacts and scatters the union of the ranks' non-zero blocks. Keeps its memory from one
// sum to the next. One thread at a time.
class BlockUnion {
 public:
  // Marks the non-zero blocks of a tensor: one bit a block in bits(). -0.0 counts as zero, as
  // everywhere: in place (in == out), blocks that hold nothing but zeros are cleared.
  void find(const void* in, void* out, uint64_t count, DType dtype, uint32_t block_size);

  // This rank's marks after find(); those of the union once the ranks' bits are united.
  std::vector<uint8_t>& bits() { return bits_; }
  uint64_t blocks() const { return blocks_; }
  uint64_t marked() const;    // blocks
  uint64_t elements() const;  // of the marked blocks

  // Writes the elements of the marked blocks to the begin of `out`, one block after the other. So
  // no rank fails for want of memory while the others sum.
  void compact();
  // Brings blocks that are laid out as compact() does to their places in `out`, with zeros between.
  // elements: as elements() has counted.
  void scatter(uint64_t elements);

 private:
  template <typename Visit>
  void for_each_marked(Visit visit) const;
  uint32_t bytes_of(uint64_t block) const;

  const uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  uint64_t count_ = 0, blocks_ = 0;
  size_t element_ = 0, block_bytes_ = 0;
  std::vector<uint8_t> bits_;
};

double steady_seconds();

// All ranks choose alike: from the call, from unions that all have learnt, and from rank 0's
// decisions, which rank 0 broadcasts before the first sum of a bin and after each trial. One call
// at a time, in the same order on all ranks. Host memory.
class Ways {
 public:
  // clock: seconds; tests pass their own. op: of all its calls. Reduce-scatters use every algorithm
  // except the sum on unions. connect_s: as the policy's.
  explicit Ways(const Settings& agreed, Op op = Op::allreduce, double connect_s = kConnectHosts,
                std::function<double()> clock = steady_seconds)
      : settings_(agreed),
        clock_(std::move(clock)),
        scatters_(op == Op::reduce_scatter),
        policy_(!scatters_, connect_s) {}

  // Makes the call without the library, maybe with the lossless codec. Absent: it cannot.
  using Own = std::function<std::optional<SumMade>(const void* in, void* out, const Codec& codec)>;

  // Makes a call without a codec. Returns the algorithm that made it. Throws Error; `out` is then
  // undefined.
  Way sum(const Call& call, Library& library, const Own& own);

  // Ranks connect at the next sum, as Policy::connect_at_once().
  void connect_at_once() { policy_.connect_at_once(); }

 private:
  struct Made {
    Way way;
    std::optional<uint64_t> united;  // bytes of the union of blocks, if known
    int density = kUnknown;          // of the union
    bool as_wished = true;           // false: another algorithm than was to be tried
  };
  struct State {
    Order order;
    uint32_t left = 0;  // sums until the next decision
  };

  Way next(Bin bin, const Call& call, Library& library, bool first);
  Made make(Way way, const Call& call, Library& library, const Own& own);
  Made unite(const Call& call, Library& library, const Own& own);
  void count(const Call& call, const Library& library) const;
  void count_blocks(uint64_t marked_here) const;  // of a union
  void sum_by_library(const void* in, void* out, uint64_t count, size_t element, Library& library);
  void learn(Way way, const Call& call, int guessed, const Made& made, double seconds);

  const Settings settings_;
  const std::function<double()> clock_;
  const bool scatters_;
  Densities densities_;
  bool is_first_ = true;  // the next sum
  Policy policy_;         // rank 0's
  std::map<Bin, State> bins_;
  BlockUnion union_;
};

}  // namespace omnihvd
