// How the ranks of an NCCL communicator find each other: an allgather of bytes over the
// communicator itself, on a stream of its own, that does not wait for ever.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "session/session.h"
#include "shims/nccl/api.h"
#include "shims/nccl/cuda_driver.h"

namespace omnihvd {

// Waits until a non-blocking communicator has done what the call began that returned `result`.
// Throws Error: it failed, as `what`; or `aborted` was set meanwhile.
void settle(NcclResult result, NcclComm comm, const std::atomic<bool>& aborted, const char* what);

class NcclExchange : public Exchange {
 public:
  // The exchange takes place inside a call on the communicator, where NCCL allows no other. Throws
  // Error. In the end release() must be called.
  NcclExchange(NcclComm comm, const std::atomic<bool>& aborted);
  NcclExchange(const NcclExchange&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  NcclComm comm() const { return comm_; }
  const std::atomic<bool>& aborted() const { return aborted_; }
  CuDevice device() const { return device_; }
  CuContext context() const { return context_; }
  CuStream stream() const { return stream_; }  // of its own

  // Warns after 10 s, and then each stall_warning_s, that the other ranks have not come, and fails
  // after timeout_s.
  void set_patience(const Settings& settings);

  std::vector<std::string> allgather(const std::string& mine) override;

  // The same on several communicators at once: one thread may be a rank of each, or they may belong
  // to calls of one group, which ranks may make in any order. Returns [exchange][rank].
  static std::vector<std::vector<std::string>> allgather(const std::vector<NcclExchange*>& all,
                                                         const std::vector<std::string>& mine);

  // Waits until over() is true for what the ranks do together. Throws Error, with the same patience
  // as allgather(); or the communicator has failed, or was aborted.
  void wait_until(const std::function<bool()>& over) const;

  void wait() const;  // the same, for what is queued on the stream; in a CudaScope

  bool idle() const;  // NCCL has done with the stream and the buffers. In a CudaScope

  // Frees the stream and the buffers, which must be idle, in a CudaScope.
  void release();
  void give_up();  // any thread

 private:
  static std::vector<std::vector<std::string>> gather_equal(const std::vector<NcclExchange*>& all,
                                                            const std::vector<std::string>& mine);
  void begin(const std::string& mine);

  const NcclComm comm_;
  const std::atomic<bool>& aborted_;
  double stall_warning_s_ = 60, timeout_s_ = 0;
  int rank_ = 0, size_ = 0;
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
