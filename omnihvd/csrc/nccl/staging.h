// The memory through which a tensor's blocks pass between a GPU and the engine: pinned host memory,
// which the kernels read and write, and a little device memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/abi.cuh"
#include "nccl/block_tensor.h"
#include "nccl/cuda_driver.h"

namespace omnihvd {

// Byte offsets of the parts of a set, for a tensor of a certain size.
struct StagingLayout {
  StagingLayout(uint64_t elements, DType dtype, uint32_t block_size, uint32_t local_ranks);

  uint64_t elements, blocks;
  DType dtype;
  uint32_t block_size, local_ranks;
  // For compact: totals, followed by the bitmap.
  uint64_t bitmap, counters_bytes;
  // In device memory, after the statuses of the host's ranks.
  uint64_t device_counters, device_bytes;
  // In host memory: a copy of totals and bitmap; compact's output; scatter's input.
  uint64_t counters, in_records, in_data, out_records, out_data, host_bytes;
};

// The head of a set's pinned memory. The statuses of all ranks of the host follow it.
struct StagingHead {
  uint32_t flag;       // at least a collective's number: its result is complete, or it failed
  int32_t status;      // of the collective: 0, or 1 if it failed
  uint64_t out_count;  // records of the result, or kNoResult
};

// Made and destroyed in a CudaScope, on the thread that calls on the communicator; never on
// progress threads or in a host function, which must not call CUDA.
struct StagingSet {
  explicit StagingSet(const StagingLayout& room);  // throws Error
  ~StagingSet();

  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(host.data() + offset);
  }
  StagingHead& head() const { return *at<StagingHead>(0); }
  int32_t* statuses() const { return at<int32_t>(sizeof(StagingHead)); }

  // Lets a stream that waits for this collective, or an earlier one, go on. Any thread.
  void release_until(uint32_t number);
  bool released(uint32_t number) const;

  const uint64_t device_bytes, host_bytes;
  const uint32_t local_ranks;
  DeviceMemory device;
  PinnedMemory host;
  CuEvent free = nullptr;          // recorded after the last use
  CuStream stream = nullptr;       // of the last use
  uint32_t number = 0;             // of the last collective that used it
  std::mutex mutex;                // guards the head; held for a moment only
  std::vector<uint64_t> place_of;  // [non-zero block]: Record::place, for the current collective
};

// A few sets, used in turn: one for each stream with collectives under way, and at most kMost. One
// thread at a time acquires. Functions for any thread never wait for CUDA: they must work while the
// acquiring thread is stuck.
class Staging {
 public:
  static constexpr size_t kMost = 4;

  struct Use {
    std::shared_ptr<StagingSet> set;
    uint32_t number;  // in the set
  };
  // Allocates a set of so many bytes, unless there is one. Sets that are too small are kept until
  // the end, because freeing them would wait for the device. In a CudaScope. If it throws Error,
  // nothing has changed.
  void make_room(const StagingLayout& room);
  // A set for the next collective on the stream, which will wait until the set is free. Call
  // make_room() before. In a CudaScope. Throws Error, but not for lack of memory.
  Use acquire(const StagingLayout& layout, CuStream stream);

  // Lets all streams that wait for a result, now or later, go on without one. Any thread.
  void release_waiters();

  // Whether a collective failed on some rank of this host, as far as the collectives under way
  // show. Any thread.
  bool failed_on_host() const;

  std::vector<std::shared_ptr<StagingSet>> sets() const;
  // Forgets all sets, and returns them.
  std::vector<std::shared_ptr<StagingSet>> take_all();

 private:
  size_t choose(CuStream stream) const;

  mutable std::mutex mutex_;  // guards what follows; only acquire() and take_all() change the lists
  std::vector<std::shared_ptr<StagingSet>> sets_, outgrown_;
  bool released_ = false;
  uint64_t device_bytes_ = 0, host_bytes_ = 0;  // of each of sets_
};

// One collective's tensor in a set, for the progress threads: its non-zero blocks, and the places
// for their sums (block_tensor.h).
class StagedCollective {
 public:
  StagedCollective(Staging::Use use, const StagingLayout& where);

  const StagingLayout& where() const { return where_; }

  // Called once the input has arrived, before there are tensors. Returns false if the stream no
  // longer waits.
  bool begin();
  void end(bool failed);  // lets the stream go on

  // Between begin() and end(); index() first. Any thread.
  void index();
  bool has(uint64_t block) const { return bitmap_[block / 8] >> (block % 8) & 1; }
  BlockBytes at(uint64_t block) const {
    const uint64_t place = set_->place_of[block];
    return {data_ + (place >> 16), static_cast<uint32_t>(place & 0xffff)};
  }
  void put(uint64_t block, const BlockRef& sum);

 private:
  const std::shared_ptr<StagingSet> set_;
  const uint32_t number_;
  const StagingLayout where_;
  const uint8_t* const bitmap_;
  const uint8_t* const data_;
  kernels::Record* const out_records_;
  uint8_t* const out_data_;
  BlockPlaces places_;
  std::atomic<uint64_t> out_count_{0};
  std::once_flag indexed_;
};

}  // namespace omnihvd
