// Out-of-band allgather for the bootstrap of an NCCL communicator. It uses the communicator itself,
// on a stream of its own, and has a time-out.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engine/session.h"
#include "nccl/api.h"
#include "nccl/cuda_driver.h"

namespace omnihvd {

// Waits until a non-blocking communicator has finished the call that returned `result`. Throws
// Error if it failed, as `what`; or if `aborted` was set meanwhile.
void settle(NcclResult result, NcclComm comm, const std::atomic<bool>& aborted, const char* what);

class NcclExchange : public Exchange {
 public:
  // The exchange takes place inside a call on the communicator, when NCCL allows no other call.
  // Throws Error. release() must be called in the end.
  NcclExchange(NcclComm comm, const std::atomic<bool>& aborted);
  NcclExchange(const NcclExchange&) = delete;

  NcclComm comm() const { return comm_; }
  const std::atomic<bool>& aborted() const { return aborted_; }
  CuDevice device() const { return device_; }
  CuContext context() const { return context_; }
  CuStream stream() const { return stream_; }  // of its own

  // Sets the time-outs: allgather() warns after 10 s, and then every stall_warning_s, that the
  // other ranks have not come, and fails after timeout_s.
  void set_patience(const Settings& settings);

  std::vector<std::string> allgather(const std::string& mine) override;

  // Waits until over() is true for joint work of the ranks. Throws Error after the time-outs of
  // allgather(), or if the communicator has failed or was aborted. `what`: the wait, in messages.
  void wait_until(const char* what, const std::function<bool()>& over) const;

  void wait() const;  // the same for work queued on the stream; in a CudaScope

  bool idle() const;  // NCCL no longer uses stream and buffers. In a CudaScope

  // Frees the stream and the buffers. They must be idle. In a CudaScope.
  void release();
  void give_up();  // any thread

 private:
  std::vector<std::string> gather_equal(const std::string& mine);
  void begin(const std::string& mine);

  const NcclComm comm_;
  const std::atomic<bool>& aborted_;
  double stall_warning_s_ = 60, timeout_s_ = 0;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
  struct Buffers {
    PinnedMemory host;
    DeviceMemory device;
  };
  std::vector<Buffers> outgrown_;  // freeing them would wait for the device
  Buffers buffers_;
  size_t room_ = 0;  // bytes in each
};

}  // namespace omnihvd
