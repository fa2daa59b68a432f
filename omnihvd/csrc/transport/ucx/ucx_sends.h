// Sends that UCX has under way, each with the memory that UCX reads until the send ends.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "base/slice.h"

namespace omnihvd {

struct UcxSend {
  void* peer = nullptr;  // the transport's; null: spare
  uint64_t cookie = 0;
  std::vector<ucp_dt_iov_t> iov;
  std::vector<char> copy;  // of the data, once detached
  bool detached = false;
};

// Its sends have stable addresses.
class UcxSends {
 public:
  UcxSend& take(void* peer, uint64_t cookie, const Slice* slices, size_t count);
  void give_back(UcxSend& send);
  UcxSend* find(uint64_t cookie);  // among those not detached; null: none

 private:
  std::deque<UcxSend> all_;
  std::vector<UcxSend*> spare_;
};

// Lets the send continue from a copy. UCX looks up each slice as it copies it into a message on the
// wire: no slice twice, and none in advance (there is no zero-copy, see ucx_worker.cc).
void detach(UcxSend& send);

}  // namespace omnihvd
