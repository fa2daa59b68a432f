// Sums by NCCL on the union of the ranks' non-zero blocks.
//
// A call records on the caller's stream when its input is ready, puts a kernel there that waits for
// a flag, and hands the sum to a thread of the communicator's, which puts its steps on streams and
// a communicator of its own (union_pipeline.h). The last step sets the flag.
//
// The thread makes the sums in the order of the calls, and what it does depends on unions only: so
// all ranks call NCCL in one order on that communicator. Communicators share no thread, no
// stream and no lock: a sum waits for what its caller's stream waits for, and for the same sum on
// the other ranks, as it would in NCCL alone. (What else streams may share: docs/gpu.md.)
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "session/stats.h"
#include "shims/nccl/cuda_driver.h"
#include "shims/nccl/gpu_choice.h"
#include "shims/nccl/kernels.h"
#include "shims/nccl/reduction.h"
#include "shims/nccl/union_pipeline.h"
#include "shims/nccl/union_watch.h"

namespace omnihvd {

class UnionWay {
 public:
  // `failed` is called with the reason, on a thread of its own; the first one counts. In a
  // CudaScope. Allocates all memory
  // that it ever needs. Throws Error.
  using Failed = std::function<void(const std::string& why)>;
  UnionWay(const Settings& agreed, const Network& network, int rank, CuContext context,
           const KernelTable& kernels, Failed failed);
  UnionWay(const UnionWay&) = delete;
  // In a CudaScope, after finish() has said true; else it must be kept for good.
  ~UnionWay();

  // Collective; of the exchange's ranks, which have nothing under way on its communicator. Throws
  // Error.
  void connect(const NcclExchange& exchange);

  uint64_t most_elements() const { return pipeline_.most_elements(); }  // of a sum

  // The way of the next sum, the same on all ranks. As many as kPlaces sums are under way at most:
  // then it waits for the oldest. Throws Error.
  Way next(uint64_t count, DType dtype);
  // The sum, of at most that many elements, if next() has said unite. In a CudaScope. Throws Error.
  void sum(const NcclReduction& r, DType dtype);

  NcclResult async_error() { return pipeline_.comm().async_error(); }  // any thread

  // Ends what is under way, on all ranks, and lets the callers' streams go on, with every bit of
  // the output set, once nothing writes there any more; after 5 s in any case. Any thread; calls
  // neither CUDA nor NCCL itself.
  void interrupt();

  // Waits until all sums have ended, or it was interrupted, and ends the thread and the
  // communicator. In a CudaScope. False: the device may still use the memory.
  bool finish();

 private:
  static constexpr uint64_t kPlaces = 64;  // sums that are under way at most

  struct Place {      // in pinned memory
    uint32_t flag;    // 1 more than the sums that have used this place and ended
    uint32_t status;  // of the last one: 0, or 1 if it has failed or not ended yet
    uint32_t unused[30];
  };
  struct Begun {  // until the host function that ends it
    UnionWay* owner;
    Way way;
    uint64_t turn, bytes, summed_bytes;
    std::chrono::steady_clock::time_point made, known;
  };

  class Inside;

  void run();
  void guard();
  void process(const UnionSum& sum);
  void watch();
  template <typename Condition>
  void wait_watching(std::unique_lock<std::mutex>& lock, Condition condition);
  static void on_known(void* call);
  static void on_end(void* begun);
  void stop();
  void drain();
  void release_all();
  void measured(const Begun& begun);
  Place& place(uint64_t turn) const {
    return reinterpret_cast<Place*>(places_.data())[turn % kPlaces];
  }

  const Settings settings_;
  const CuContext context_;
  const KernelTable& kernels_;
  const Failed failed_;
  std::atomic<bool> stopping_{false};
  UnionPipeline pipeline_;
  PinnedMemory places_;
  CuEvent ready_[kPlaces] = {};

  // The caller's.
  GpuChoices choices_;
  uint64_t calls_ = 0, made_ = 0;        // all sums, and those that are united
  std::deque<uint64_t> calls_of_turns_;  // of united sums that have not been learnt from

  // The thread's.
  std::deque<UnionSum> under_way_;
  UnionWatch watch_{settings_};
  std::atomic<bool> draining_{false};     // it will not call NCCL any more
  std::atomic<int64_t> inside_since_{0};  // CUDA or NCCL, in ticks of the clock; 0: it is not

  std::mutex mutex_;  // guards what follows; held for a moment only
  std::condition_variable changed_, to_be_guarded_;
  std::deque<UnionSum> queue_;
  std::deque<Way> verdicts_;  // of united sums, in order
  uint64_t queued_ = 0, known_ = 0, ended_ = 0;
  Network network_;  // rank 0's figure of it, as all have learnt it
  double my_seconds_per_byte_ = 0;
  uint64_t samples_ = 0;
  bool quit_ = false, released_ = false, drained_ = true, over_ = false;

  std::thread thread_, guard_, aborter_;
};

}  // namespace omnihvd
