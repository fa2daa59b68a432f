// The memory through which a tensor's blocks pass between a GPU and the engine: pinned memory of
// the host, which the kernels write and read, and a little of the device's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/abi.cuh"
#include "shims/nccl/block_tensor.h"
#include "shims/nccl/cuda_driver.h"

namespace omnihvd {

// Where the parts of a set lie for a tensor of a certain size: byte offsets.
struct StagingLayout {
  StagingLayout(uint64_t elements, DType dtype, uint32_t block_size, uint32_t local_ranks);

  uint64_t elements, blocks;
  DType dtype;
  uint32_t block_size, local_ranks;
  // Of compact: totals, and behind them the bitmap.
  uint64_t bitmap, counters_bytes;
  // In the device's memory, behind a status of each rank of the host.
  uint64_t device_counters, device_bytes;
  // In the host's: a copy of totals and bitmap; what compact writes; what scatter reads.
  uint64_t counters, in_records, in_data, out_records, out_data, host_bytes;
};

// At the beginning of a set's pinned memory. Behind it come the statuses of all ranks of the host.
struct StagingHead {
  uint32_t flag;       // at least a collective's number: its result is complete, or it failed
  int32_t status;      // of the collective: 0, or 1 if it failed
  uint64_t out_count;  // records of the result, or kNoResult
};

// Made and destroyed in a CudaScope, by whoever calls on the communicator; never by the engine's
// threads or by a host function, in which CUDA must not be called.
struct StagingSet {
  explicit StagingSet(const StagingLayout& room);  // throws Error
  ~StagingSet();

  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(host.data() + offset);
  }
  StagingHead& head() const { return *at<StagingHead>(0); }
  int32_t* statuses() const { return at<int32_t>(sizeof(StagingHead)); }

  // Lets the stream that waits for this collective, or an earlier one, go on. Any thread.
  void release_until(uint32_t number);
  bool released(uint32_t number) const;

  const uint64_t device_bytes, host_bytes;
  const uint32_t local_ranks;
  DeviceMemory device;
  PinnedMemory host;
  CuEvent free = nullptr;          // recorded behind the last use
  CuStream stream = nullptr;       // of the last use
  uint32_t number = 0;             // of the last collective that used it
  std::mutex mutex;                // guards the head; held for a moment only
  std::vector<uint64_t> place_of;  // [non-zero block]: see Record. Of the one that uses the set
};

// A few sets, used in turn: one for each stream on which there are collectives under way, and no
// more than kMost. One thread at a time acquires. What any thread may call never waits for CUDA:
// it must work where the acquiring thread is stuck.
class Staging {
 public:
  static constexpr size_t kMost = 4;

  struct Use {
    std::shared_ptr<StagingSet> set;
    uint32_t number;  // in the set
  };
  // Allocates a set of so many bytes, unless there is one. What is too small is kept until the end,
  // for freeing it would wait for the device. In a CudaScope. Throws Error, and has done nothing
  // then.
  void make_room(const StagingLayout& room);
  // A set for the next collective on the stream, which will wait until the set is free. There must
  // be room for it. In a CudaScope. Throws Error, but not for lack of memory.
  Use acquire(const StagingLayout& layout, CuStream stream);

  // Lets all streams that wait for a result go on, now and later, with none. Any thread.
  void release_waiters();

  // Whether a collective failed on some rank of this host, as far as those under way tell. Any
  // thread.
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

// One collective's tensor in a set, for the engine's threads: its non-zero blocks, and where their
// sums go (see block_tensor.h).
class StagedCollective {
 public:
  StagedCollective(Staging::Use use, const StagingLayout& where);

  const StagingLayout& where() const { return where_; }

  // Once the input has arrived, before there are tensors. False: the stream no longer waits.
  bool begin();
  void end(bool failed);  // lets the stream go on

  // Between them, index() before all else. Any thread.
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
