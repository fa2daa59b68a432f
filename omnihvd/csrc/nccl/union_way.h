// Sums by NCCL on the union of the ranks' non-zero blocks. Each call queues all of its work.
//
// Beside the callers, each rank has a thread that makes no CUDA calls and waits for no calls, only
// for the same threads of the other ranks. These threads talk in rounds, over a group of the
// engine. They exchange how many calls each rank has made, rank 0's proposal, the votes, failures,
// and the blocks beyond a union's capacity, which they then sum. docs/gpu.md explains why none of
// this can hang unless NCCL does.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/session.h"
#include "nccl/gpu_choice.h"
#include "nccl/stopwatch.h"
#include "nccl/union_steps.h"

namespace omnihvd {

class UnionWay {
 public:
  // `failed` is called with the reason, on any thread. In a CudaScope. Allocates all memory that it
  // will ever need. Throws Error.
  using Failed = std::function<void(const std::string& why)>;
  // levels: null if sums use one level; otherwise the agreed hierarchy applies.
  UnionWay(const Settings& agreed, int ranks, int rank, const KernelTable& kernels,
           std::shared_ptr<NcclGrid> levels, Failed failed);
  UnionWay(const UnionWay&) = delete;
  // In a CudaScope, after finish() has returned true. If finish() has not, the object must never be
  // destroyed.
  ~UnionWay() = default;

  void begin(std::shared_ptr<Group> group);  // from now on the ranks' threads talk over this group

  // The next sum's plan, the same on all ranks. Throws Error after interrupt().
  UnionCall next(const NcclReduction& r, DType dtype);
  UnionSteps& steps() { return steps_; }
  Stopwatch* stopwatch() { return rank_ == 0 ? &stopwatch_ : nullptr; }

  // Why a sum that needed the other ranks' threads was lost; empty: none was. Any thread.
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
    uint64_t bytes, blocks;
  };
  void serve();
  bool round();
  void pause(std::unique_lock<std::mutex>& lock);
  void read_seen();
  void write_state(std::vector<int64_t>& words);
  void read_states(const std::vector<int64_t>& words);
  void sum_rest(const std::vector<int64_t>& words);
  void answer();
  bool is_asked() const;

  const Settings settings_;
  const int ranks_, rank_;
  const Failed failed_;
  UnionSteps steps_;
  Stopwatch stopwatch_;

  std::mutex mutex_;  // guards what follows; held for a moment only
  std::condition_variable changed_;
  UnionPlans plans_;
  UnionChooser chooser_;  // rank 0's
  std::deque<Issued> issued_;
  bool interrupted_ = false, has_failed_ = false, quit_ = false, over_ = true;
  std::string why_over_;

  // Used only by the thread.
  std::shared_ptr<Group> group_;
  UnionProposal proposal_;  // under vote
  bool voting_ = false, in_time_ = false;
  uint64_t slack_ = 8, most_calls_ = 0;  // rank 0's proposals begin this far ahead
  uint32_t summed_ = 0;                  // windows summed
  bool held_ = false;                    // the last window's sum is held until all ranks have it
  double idle_s_ = 0;
  uint32_t alert_ = 0;  // pauses in which the device will soon have something to ask
  std::thread thread_;
};

}  // namespace omnihvd
