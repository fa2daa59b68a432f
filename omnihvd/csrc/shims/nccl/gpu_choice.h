// Which way a sum on GPUs is made: from a model of what the ways cost, and from what the ranks have
// learnt of the sums before.
//
// Pure, and fed with what all ranks know alike, so that all choose alike.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>

#include "protocol/dtype.h"
#include "session/settings.h"

namespace omnihvd {

struct SumSeen {
  uint64_t bytes;
  double united;  // share of its blocks that are non-zero on any rank
  double own;     // on one rank, in the mean
};

struct Network {
  int ranks;
  bool one_gpu_a_host;
  double seconds_per_byte;  // of NCCL's allreduce; 0: not known yet
};

struct WaySeconds {
  double unite, stream, original;
};

// What a sum is estimated to take in each way; see docs/gpu.md.
WaySeconds estimate(const SumSeen& sum, const Network& network);

// The way for the next sum that is like this one, as `setting` allows: automatic, or unite, which
// is left only where the union is nearly everything.
Way choose(Way setting, const SumSeen& sum, const Network& network);

// Remembers for each sum of a training step, known by its size, dtype and the sizes of the two
// before it, which way it goes. Sums that are not united tell nothing: now and then one is, to
// look. One thread.
class GpuChoices {
 public:
  // Of the next sum: unite, stream or original.
  Way next(uint64_t count, DType dtype);
  // Of the sums for which next() said unite, one after another: the way for those like it.
  void learn(Way way);

 private:
  static constexpr uint32_t kPatience = 32, kLongestPatience = 1024;
  using Key = std::tuple<uint64_t, DType, uint64_t, uint64_t>;
  struct Known {
    Way way = Way::unite;
    uint32_t left = 0, patience = kPatience;  // sums until one looks
  };
  struct Asked {
    Key key;
    bool look;
  };
  std::map<Key, Known> known_;
  std::deque<Asked> asked_;
  uint64_t before_[2] = {0, 0};
};

}  // namespace omnihvd
