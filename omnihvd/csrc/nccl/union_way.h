// Sums by NCCL on the union of the ranks' non-zero blocks. Each call queues all of its work.
//
// Beside the callers, each rank has a thread that makes no CUDA calls and waits for no calls, only
// for the same threads of the other ranks. If a union exceeds its capacity, which all ranks see
// alike, these threads sum the blocks beyond it, over a group of the engine. docs/gpu.md explains
// why none of this can hang unless NCCL does.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/session.h"
#include "nccl/gpu_model.h"
#include "nccl/stopwatch.h"
#include "nccl/union_steps.h"

namespace omnihvd {

class UnionWay {
 public:
  // In a CudaScope. Allocates all memory that it will ever need. Throws Error. levels: null if sums
  // use one level.
  UnionWay(const Settings& agreed, int ranks, int hosts, int rank, const KernelTable& kernels,
           std::shared_ptr<NcclGrid> levels);
  UnionWay(const UnionWay&) = delete;
  // In a CudaScope, after finish() has returned true. If finish() has not, the object must never be
  // destroyed.
  ~UnionWay() = default;

  void begin(std::shared_ptr<Group> group);  // the ranks' threads talk over this group

  // The next sum's plan, the same on all ranks. Waits until this rank's device has come to the call
  // UnionPlans::kBehind before. Throws Error after interrupt(), or as exchange.wait_until().
  UnionCall next(const NcclReduction& r, DType dtype, const NcclExchange& exchange);
  uint32_t trailer_of(const UnionCall& call);  // of the marks
  UnionSteps& steps() { return steps_; }
  Stopwatch& stopwatch() { return stopwatch_; }

  // Why a sum that needed the other ranks' threads was lost, or why another rank's thread has
  // failed; empty: none. Any thread.
  std::string lost();

  // Ends sums under way that need the other ranks' threads, with every bit of the output set, and
  // if this rank has failed, tells the other ranks; an abort is NCCL's to tell. Any thread; no CUDA
  // calls.
  void interrupt(bool failed = true);

  // Waits until all sums have ended, or were interrupted, and ends the thread. In a CudaScope.
  // Returns false if the device may still use the memory.
  bool finish();

 private:
  struct Issued {
    UnionCall call;
    DType dtype;
    uint64_t blocks;
  };
  struct Seen {
    uint64_t united;
    uint32_t trailer;
  };
  void serve();
  void watch();
  void read_seen();
  void sum_window();
  void answer();

  const Settings settings_;
  const int rank_;
  UnionSteps steps_;
  Stopwatch stopwatch_;

  std::mutex mutex_;  // guards what follows; held for a moment only
  std::condition_variable changed_;
  const GpuModel model_;
  UnionPlans plans_;
  std::deque<Issued> issued_;  // looks that the device has not reached
  std::deque<Seen> seen_;      // and those that plans_ has not been told of
  uint64_t united_ = 0;        // of issued_: sums on the union
  uint64_t windows_ = 0;       // that the device will ask for
  bool interrupted_ = false, quit_ = false, over_ = true;
  std::string why_over_;
  std::shared_ptr<Group> group_;

  // Used only by the thread.
  uint32_t summed_ = 0;  // windows
  bool held_ = false;    // the last window's sum is held until all ranks have it
  std::thread thread_;
};

}  // namespace omnihvd
