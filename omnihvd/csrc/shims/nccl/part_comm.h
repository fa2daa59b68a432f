// A communicator of the shim's own, of some of the ranks of the caller's.
//
// It is made by an id of its own. One that is split off another may share the other's stream, if
// NCCL_COMM_SPLIT_SHARE_RESOURCES says so, and does what the other's config says.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "shims/nccl/api.h"
#include "shims/nccl/exchange.h"

namespace omnihvd {

class PartComm {
 public:
  // Collective over the exchange: of these ranks, ascending, with this one among them. All ranks
  // make their parts at the same time. Returns why one was not made, on all ranks; empty: all are.
  // Throws Error where the exchange fails.
  std::string make(NcclExchange& exchange, const std::vector<int>& ranks);

  NcclComm get();  // throws Error once it has ended

  // What NCCL says of it, or success. Any thread, at any time.
  NcclResult async_error();

  void destroy();
  void abort();  // any thread

 private:
  NcclComm take();

  std::mutex mutex_;  // guards comm_ against its end; not held while it is ended
  NcclComm comm_ = nullptr;
};

}  // namespace omnihvd
