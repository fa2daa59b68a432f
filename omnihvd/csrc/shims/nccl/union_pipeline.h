// The steps on the device of sums by NCCL on the union of the ranks' non-zero blocks, with the
// memory, the streams and the communicator that they need:
//
//   front     mark the non-zero blocks; ncclAllGather of the marks; unite; tell the host
//             for each batch of the union: gather its blocks into a buffer
//   summing   for each batch: ncclAllReduce of the buffer
//   back      for each batch: spread the sums over the output; at the end, a host function
//
// Between telling and gathering the caller waits for the size of the union, since NCCL takes counts
// from the host. One thread calls, in a CudaScope; all but idle() throw Error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "shims/nccl/cuda_driver.h"
#include "shims/nccl/gpu_choice.h"
#include "shims/nccl/kernels.h"
#include "shims/nccl/part_comm.h"
#include "shims/nccl/reduction.h"
#include "shims/nccl/union_watch.h"

namespace omnihvd {

struct UnionSum {
  NcclReduction r;
  DType dtype;
  uint64_t turn;
  CuEvent ready;  // behind what makes the input
  std::chrono::steady_clock::time_point made;
};

class UnionPipeline {
 public:
  // Allocates all memory that it ever needs. `stopping`: ends waits for NCCL's calls.
  UnionPipeline(const Settings& agreed, int ranks, int rank, const KernelTable& kernels,
                const std::atomic<bool>& stopping);
  UnionPipeline(const UnionPipeline&) = delete;
  // Once idle() has said true.
  ~UnionPipeline();

  // Collective; of the exchange's ranks, which have nothing under way on its communicator. Where
  // it throws, the communicator is to be aborted.
  void connect(const NcclExchange& exchange);
  PartComm& comm() { return comm_; }

  uint64_t most_elements() const { return most_blocks_ * settings_.block_size; }  // of a sum
  uint64_t slot_bytes() const { return slot_bytes_; }

  using HostFunction = void (*)(void*);
  // Of each sum, in the order of their turns. Calls known(argument) once the union of the sum is
  // known; `note` goes to the other ranks.
  void find_union(const UnionSum& sum, double note, HostFunction known, void* argument);
  // Then: what it is, and rank 0's note.
  SumSeen read_union(const UnionSum& sum, double* note);
  // Then one of these: by batches of the union, or whole. They return the bytes summed.
  uint64_t sum_batches(const UnionSum& sum);
  uint64_t sum_whole(const UnionSum& sum);
  // Calls ended(argument) when the output is complete.
  void end(const UnionSum& sum, HostFunction ended, void* argument);

  // Where a sum is, if those before it have ended. `known`: find_union() has said so.
  UnionProgress progress(const UnionSum& sum, bool known) const;

  bool idle() const;  // the streams have done all

 private:
  static constexpr uint64_t kSlots = 3;

  struct Batch {  // what is behind each of its steps
    CuEvent gathered, summed, spread;
  };
  struct Area {  // of every other sum
    CuAddress records = 0, united = 0, prefix = 0, starts = 0;
    uint64_t note = 0, counts = 0, host_starts = 0;  // offsets in pinned memory
    CuEvent marked = nullptr, done = nullptr;
    std::vector<Batch> batches;  // of any sum so far
    uint64_t used = 0;           // of them, by the last sum
  };
  struct Slot {
    CuAddress buffer = 0;
    CuEvent free = nullptr;  // behind its last use
  };
  struct Shape {  // of a sum
    uint64_t blocks, words, words_per_chunk, chunks;
  };

  CuEvent make_event();
  void release();
  Area& area_of(const UnionSum& sum) { return areas_[sum.turn % 2]; }
  Shape shape_of(const UnionSum& sum) const;
  const Batch& next_batch(Area& area);
  void sum_batch(const UnionSum& sum, Area& area, uint64_t first, uint64_t end);
  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(pinned_.data() + offset);
  }

  const Settings settings_;
  const int ranks_, rank_;
  const KernelTable& kernels_;
  const std::atomic<bool>& stopping_;
  uint64_t slot_bytes_ = 0, most_blocks_ = 0, stride_ = 0;

  PartComm comm_;
  int priority_ = 0;  // of the streams
  CuStream front_ = nullptr, summing_ = nullptr, back_ = nullptr;
  PinnedMemory pinned_;
  DeviceMemory device_;
  Area areas_[2];
  Slot slots_[kSlots];
  std::vector<CuEvent> events_;  // all
  uint64_t batches_ = 0;         // that have had a slot
};

}  // namespace omnihvd
