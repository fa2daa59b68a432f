// Sums by NCCL on the union of the ranks' non-zero blocks, all of which is queued in the call.
//
// Beside the callers there is a thread, which makes no CUDA calls and waits for nobody's calls,
// only for the same threads of the other ranks. These talk in rounds, over a group of the engine's:
// how many calls each has made, what rank 0 proposes, who votes for it, who has failed, and what
// did not fit a union's capacity, which they sum then. docs/gpu.md says why nothing of this can
// hang where NCCL does not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "session/session.h"
#include "shims/nccl/gpu_choice.h"
#include "shims/nccl/stopwatch.h"
#include "shims/nccl/union_steps.h"

namespace omnihvd {

class UnionWay {
 public:
  // `failed` is called with the reason, on any thread. In a CudaScope. Allocates all memory that it
  // ever needs. Throws Error.
  using Failed = std::function<void(const std::string& why)>;
  // levels: null where sums are on one level; else as the agreed hierarchy says.
  UnionWay(const Settings& agreed, int ranks, int rank, const KernelTable& kernels,
           std::shared_ptr<NcclGrid> levels, Failed failed);
  UnionWay(const UnionWay&) = delete;
  // In a CudaScope, after finish() has said true; else it must be kept for good.
  ~UnionWay() = default;

  void begin(std::shared_ptr<Group> group);  // the ranks' threads talk over it from now on

  // The next sum's plan, the same on all ranks. Throws Error once it was interrupted.
  UnionCall next(const NcclReduction& r, DType dtype);
  UnionSteps& steps() { return steps_; }
  Stopwatch* stopwatch() { return rank_ == 0 ? &stopwatch_ : nullptr; }

  // Why a sum was lost that needed the other ranks' threads; empty: none was. Any thread.
  std::string lost();

  // What is under way and needs the other ranks' threads ends, with every bit of the output set;
  // they are told. Any thread; no CUDA calls.
  void interrupt();

  // Waits until all sums have ended, or it was interrupted, and ends the thread. In a CudaScope.
  // False: the device may still use the memory.
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
  bool interrupted_ = false, quit_ = false, over_ = true;
  std::string why_over_;

  // The thread's.
  std::shared_ptr<Group> group_;
  UnionProposal proposal_;  // that is voted on
  bool voting_ = false, in_time_ = false;
  uint64_t slack_ = 8, most_calls_ = 0;  // ahead of which rank 0 proposes
  uint32_t summed_ = 0;                  // windows
  bool held_ = false;                    // the last one's sum, until all ranks have it
  double idle_s_ = 0;
  uint32_t alert_ = 0;  // pauses in which the device will soon have something to ask
  std::thread thread_;
};

}  // namespace omnihvd
