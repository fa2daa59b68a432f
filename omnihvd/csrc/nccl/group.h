// The engine's group for an NCCL communicator.
//
// One thread at a time may call on a communicator, as NCCL requires; failure() and abort() may come
// from another thread at any time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/session.h"
#include "nccl/exchange.h"
#include "nccl/hierarchy.h"
#include "nccl/terms.h"
#include "nccl/union_way.h"

namespace omnihvd {

class NcclGroup {
 public:
  explicit NcclGroup(NcclComm comm) : exchange_(comm, aborted_) {}  // local; throws Error
  // May run on any thread, also on one that must not call CUDA: gives up what leave() or reclaim()
  // have not freed.
  ~NcclGroup();

  int rank() const { return exchange_.rank(); }
  int size() const { return exchange_.size(); }
  CuContext context() const { return exchange_.context(); }
  const std::atomic<bool>& aborted() const { return aborted_; }

  // Collective: the ranks learn rank 0's settings and the obstacles on any rank, and if one of them
  // sums tensors of so many bytes, they connect. A failure is stored. Several communicators do this
  // at once, on a thread each: one thread may be a rank of each, and other ranks may have them in
  // another order, or one after another.
  struct Begun {
    std::shared_ptr<NcclGroup> group;
    uint64_t bytes;
  };
  static void begin(const std::vector<Begun>& all);
  bool agreed() const { return agreed_; }
  // The same on all ranks: the order in which ranks of several communicators connect them.
  const std::string& order() const { return terms_.order(); }

  // The fallback reason for a tensor of so many bytes, or none if omnihvd makes the sum. The same
  // on all ranks.
  Reason refusal(uint64_t bytes) const { return terms_.refusal(bytes); }

  const NcclExchange& exchange() const { return exchange_; }
  bool connected() const { return connected_; }

  // Null before connecting, and after an abort, which any thread may make.
  std::shared_ptr<UnionWay> union_way() const { return std::atomic_load(&union_); }
  // Runs work on the calling thread, in a CudaScope. The group must not have failed; if the work
  // fails, the group fails for good. Throws Error.
  void or_fail_for_good(const std::function<void()>& work);

  // Held while NCCL is called outside of or_fail_for_good(): abort() waits for it, but not long.
  std::unique_lock<std::mutex> at_work() { return std::unique_lock<std::mutex>(calls_); }

  // The failure, also that of a collective queued earlier; empty: none. Any thread.
  std::string failure();

  // Collective. Waits for queued collectives, and leaves the group. abort() on another thread ends
  // the wait.
  void leave();
  // Fails the collectives under way, lets the streams go on, and leaves the group. Any thread.
  // `abort_nccl` aborts the communicator. The host's communicator is aborted at the same time,
  // because each of the two may keep the device from finishing the other's work.
  NcclResult abort(const std::function<NcclResult()>& abort_nccl);
  // The parts of abort(). Work under way ends; after that the communicator can only be destroyed.
  void interrupt(const std::string& why);
  void abort_host();  // on another thread: leave() and reclaim() wait for it
  // Frees the memory once the communicator has been aborted. Runs on the thread that aborted it.
  void reclaim();

 private:
  void agree(const std::string& greeting);
  void connect();
  void fail(const std::string& why);
  void connect_union();
  void leave_to_nccl(Reason reason, const std::string& why);
  Hierarchy make_levels();
  bool free_memory();

  std::atomic<bool> aborted_{false};
  NcclExchange exchange_;
  std::mutex calls_;  // held while a caller is at work: abort() waits for it, but not long

  bool agreed_ = false, connected_ = false;
  NcclTerms terms_;
  std::shared_ptr<UnionWay> union_;  // replaced atomically
  std::shared_ptr<NcclGrid> grid_;   // present: two levels; replaced atomically

  std::thread host_abort_;  // from abort_host() to leave() or reclaim()

  std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace omnihvd
