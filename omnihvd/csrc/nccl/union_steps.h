// The steps on the device of a sum on the union of the ranks' non-zero blocks, and their memory.
// The call queues all of them on the caller's stream:
//
//   mark      the non-zero blocks
//   exchange  ncclAllReduce of the marks, a byte each: their maximum
//   unite     turns them into bits; tells the host how many there are; and, but for a look:
//   gather    for each part of the capacity: the union's blocks into a buffer
//   reduce    ncclAllReduce of the buffer; or, on two levels (hierarchy.h), ncclReduceScatter of it
//             inside the hosts, ncclAllReduce of the parts between them, ncclAllGather inside
//   spread    the sums over the output
//   rest      the blocks beyond the capacity, rarely any, through host memory
//
// try_out() takes all but the last (union_trial.cc).
//
// A communicator has one set of memory: its sums wait for each other, as they do in NCCL. One
// thread at a time calls, in a CudaScope. All functions throw Error, except those that return
// NCCL's result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/settings.h"
#include "nccl/call_type.h"
#include "nccl/cuda_driver.h"
#include "nccl/exchange.h"
#include "nccl/hierarchy.h"
#include "nccl/kernels.h"
#include "nccl/union_plans.h"

namespace omnihvd {

struct UnionSum {
  NcclReduction r;
  DType dtype;
  UnionCall call;
};

class UnionSteps {
 public:
  // levels: null if there is only one.
  UnionSteps(const Settings& agreed, int ranks, const KernelTable& kernels,
             std::shared_ptr<NcclGrid> levels);
  UnionSteps(const UnionSteps&) = delete;
  ~UnionSteps();  // only when idle

  // Collective: makes NCCL connect for sums of all sizes now. Otherwise NCCL connects at the first
  // sum of each size, when the program may have its ranks wait for each other in other ways.
  void connect(const NcclExchange& exchange);
  // Collective: sums values with a known result, of two types. Returns what is wrong on this rank,
  // if anything is.
  std::string try_out(const NcclExchange& exchange, int rank);

  uint64_t most_elements() const { return kMostBlocks * settings_.block_size; }  // of a sum
  uint64_t part_bytes() const { return buffer_bytes_; }
  bool has_levels() const { return levels_ != nullptr; }

  // trailer: see gpu_choice.h.
  void mark(const UnionSum& sum, uint32_t trailer);
  NcclResult exchange(const UnionSum& sum);
  void unite(const UnionSum& sum);
  uint64_t parts(const UnionSum& sum) const {
    return (sum.call.capacity + part_blocks(sum) - 1) / part_blocks(sum);
  }
  void gather(const UnionSum& sum, uint64_t part);
  NcclResult reduce(const UnionSum& sum, uint64_t part);
  // The same on two levels. `comm`: the level's communicator.
  NcclComm inside() const { return levels_->host(); }  // throw Error once it has ended
  NcclComm between() const { return levels_->between(); }
  NcclResult scatter_inside(const UnionSum& sum, uint64_t part, NcclComm comm);
  NcclResult reduce_between(const UnionSum& sum, uint64_t part, NcclComm comm);
  NcclResult gather_inside(const UnionSum& sum, uint64_t part, NcclComm comm);
  void spread(const UnionSum& sum, uint64_t part);
  void end(const UnionSum& sum);
  uint64_t summed_bytes(const UnionSum& sum) const {  // by NCCL
    return sum.call.capacity * settings_.block_size * size_of(sum.dtype);
  }

  bool idle() const { return cuda().event_query(free_) != CuResult::not_ready; }

  // The record that the device writes, and the state that it reads. Any thread.
  volatile const kernels::Seen& seen(uint64_t number) const;
  uint64_t window_blocks(DType dtype) const;  // of the rest that are summed at a time
  volatile kernels::Rest& rest() const {
    return *reinterpret_cast<volatile kernels::Rest*>(pinned_.data());
  }
  uint8_t* window() const { return pinned_.data() + window_; }

 private:
  uint64_t words_of(const UnionSum& sum) const {  // of 32 blocks
    return ((sum.r.count + settings_.block_size - 1) / settings_.block_size + 31) / 32;
  }
  uint64_t part_blocks(const UnionSum& sum) const {  // at most
    return buffer_bytes_ / (settings_.block_size * size_of(sum.dtype));
  }
  kernels::Union blocks_of(const UnionSum& sum, uint64_t first, uint64_t room) const;
  kernels::Union part_of(const UnionSum& sum, uint64_t part) const;
  struct Share {  // what each rank of a host reduces of a part
    uint64_t count;
    void* mine;
  };
  Share share_of(const UnionSum& sum, uint64_t part) const;
  void queue(const UnionSum& sum, const NcclExchange& exchange);
  void wait_for(const NcclExchange& exchange, const char* what) const;

  const Settings settings_;
  static constexpr uint64_t kMostBlocks = 1 << 21, kTrialBlocks = 70;
  const uint64_t ranks_;
  const KernelTable& kernels_;
  const std::shared_ptr<NcclGrid> levels_;
  uint64_t buffer_bytes_ = 0, window_ = 0;
  DeviceMemory device_;
  PinnedMemory pinned_;
  CuAddress own_ = 0, all_ = 0, united_ = 0, prefix_ = 0, counts_ = 0, starts_ = 0, arrived_ = 0,
            trial_ = 0, buffer_ = 0;
  CuEvent free_ = nullptr;  // recorded after the last use
};

}  // namespace omnihvd
