// The shim's own communicator for some of the ranks of the caller's.
//
// It has an id of its own. A communicator that is split off another may share the other's stream,
// if NCCL_COMM_SPLIT_SHARE_RESOURCES says so, and inherits the other's config.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl/api.h"
#include "nccl/exchange.h"

namespace omnihvd {

class PartComm {
 public:
  // Collective over the exchange. Makes a communicator of these ranks, in ascending order; this one
  // is among them. All ranks make their parts at the same time. Returns, on all ranks, why one was
  // not made; empty: all are made. Throws Error if the exchange fails.
  std::string make(NcclExchange& exchange, const std::vector<int>& ranks);

  NcclComm get();  // throws Error once it has ended

  // NCCL's asynchronous error for it, or success. Any thread, at any time.
  NcclResult async_error();

  void destroy() {
    if (NcclComm comm = take()) nccl().comm_destroy(comm);
  }
  void abort() {  // any thread
    if (NcclComm comm = take()) nccl().comm_abort(comm);
  }

 private:
  NcclComm take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(comm_, nullptr);
  }

  std::mutex mutex_;  // protects comm_ from its end; not held during the end
  NcclComm comm_ = nullptr;
};

}  // namespace omnihvd
