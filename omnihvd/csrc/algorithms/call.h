// A collective, as a shim hands it to the communicator and the communicator to an algorithm.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "numeric/codec.h"
#include "numeric/dtype.h"

namespace omnihvd {

enum class Op : uint8_t { allreduce, reduce_scatter };

// A sum over the ranks. allreduce: `out` is the whole of it; in == out: in place.
// reduce_scatter: `out` is this rank's share, and may overlap `in`.
struct Call {
  const void* in;
  void* out;
  uint64_t count;  // elements of `in`
  DType dtype;
  Codec codec = {};           // for float32, from a caller that knows codecs
  bool may_be_coded = false;  // int32 that may carry codec data (communicator/coded_buffer.h)
  bool takes_small = false;   // whatever the size, and the ranks connect for it at once
  bool on_device = false;     // the buffers are not in host memory: Communicator::meet
  Op op = Op::allreduce;
  // For a reduce_scatter: the elements of each rank, `count` in all. Shares are adjacent, in the
  // order of ranks.
  const std::vector<uint64_t>* shares = nullptr;

  uint64_t bytes() const { return count * size_of(dtype); }
  bool any_size() const { return bool(codec) || may_be_coded || takes_small; }
  bool scatters() const { return op == Op::reduce_scatter; }
  uint64_t elements_of(int rank) const { return scatters() ? (*shares)[size_t(rank)] : count; }
  // Where a rank's share begins.
  uint64_t begin_of(int rank) const {
    return std::accumulate(shares->begin(), shares->begin() + rank, uint64_t{0});
  }
};

}  // namespace omnihvd
