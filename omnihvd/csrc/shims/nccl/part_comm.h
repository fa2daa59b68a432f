// A communicator of the shim's own, split off the caller's.
#pragma once

#include <mutex>

#include "shims/nccl/api.h"
#include "shims/nccl/exchange.h"

namespace omnihvd {

class PartComm {
 public:
  // Collective: of the ranks of the exchange with the same color, in the order of their keys.
  // Nothing may be under way on its communicator, on any rank. Throws Error.
  void split(const NcclExchange& exchange, int color, int key);

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
