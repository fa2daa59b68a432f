// A communicator of the double of NCCL, and the collectives on it, which a group queues together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "star.h"

struct CUstream_st;
extern "C" {
CUstream_st* double_new_stream();
void double_end_stream(CUstream_st* stream);
void double_die(const char* what);
bool double_fails(const char* call);
}

namespace doubles {

enum Result {
  success,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress
};

}  // namespace doubles

struct ncclComm {
  ncclComm(const std::string& where, int r, int s, bool nonblocking)
      : path(where),
        star(where, r, s),
        rank(r),
        size(s),
        device(current_device()),
        returns_early(nonblocking) {}
  ~ncclComm() { double_end_stream(own); }

  static int current_device();

  // Collectives take their turns in the order of the calls, whatever their streams.
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t calls = 0, done = 0;

  const std::string path;
  doubles::Star star;
  const int rank, size, device;
  const bool returns_early;
  CUstream_st* const own = double_new_stream();
  std::mutex connecting;
  std::unique_ptr<doubles::Star> connections;  // over which ranks meet at first uses
  std::set<std::string> connected;
  std::atomic<int> async_error{doubles::success};
  std::atomic<bool> aborted{false};
  std::atomic<int> pending{0};  // non-blocking calls that have not happened yet
  std::atomic<int> inside{0};   // threads in a call

  void abort() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      aborted = true;
      changed.notify_all();
    }
    star.abort();
  }
  bool wait_for_turn(uint64_t turn) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done == turn || aborted; });
    return !aborted;
  }
  void end_turn() {
    const std::lock_guard<std::mutex> lock(mutex);
    ++done;
    changed.notify_all();
  }
  void hang_until_aborted() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return aborted.load(); });
  }
};

namespace doubles {

using Shared = std::shared_ptr<ncclComm>;

// By the program's handle; null: there is no such communicator.
Shared shared(ncclComm* comm);
ncclComm* keep(Shared comm);
void forget(ncclComm* comm);
long live_comms();

// The calling thread's groups of calls: how many there still are in each other.
int group_depth();
void begin_group();
int end_group();
Result carry_out_group();  // in_progress: it happens a little later
void drop_group();

// `what` must be the same on all ranks. combine: see star.h.
Result collective(ncclComm* handle, CUstream_st* stream, const std::string& what, const void* in,
                  size_t in_bytes, void* out, size_t out_bytes, Star::Combine combine);

}  // namespace doubles
