// Sends that UCX has under way, each with the memory that UCX reads until the send ends.
#pragma once

#include <ucp/api/ucp.h>

#include <algorithm>
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

  // Lets the send continue from a copy. UCX looks up each slice as it copies it into a message on
  // the wire: no slice twice, and none in advance (there is no zero-copy, see ucx_worker.cc).
  // Without memory for the copy it throws, and nothing has changed.
  void detach() {
    std::vector<char> bytes;
    for (const ucp_dt_iov_t& slice : iov) {
      const char* data = static_cast<const char*>(slice.buffer);
      bytes.insert(bytes.end(), data, data + slice.length);
    }
    copy.swap(bytes);
    detached = true;
    char* at = copy.data();
    for (ucp_dt_iov_t& slice : iov) {
      slice.buffer = at;
      at += slice.length;
    }
  }
};

// Its sends have stable addresses.
class UcxSends {
 public:
  UcxSend& take(void* peer, uint64_t cookie, const Slice* slices, size_t count) {
    if (spare_.empty()) spare_.push_back(&all_.emplace_back());
    UcxSend& send = *spare_.back();
    spare_.pop_back();
    send.peer = peer;
    send.cookie = cookie;
    send.iov.clear();
    for (size_t i = 0; i < count; ++i)
      if (slices[i].size > 0)
        send.iov.push_back({const_cast<void*>(slices[i].data), slices[i].size});
    return send;
  }

  void give_back(UcxSend& send) {
    send.peer = nullptr;
    send.detached = false;
    std::vector<char>().swap(send.copy);
    spare_.push_back(&send);
  }

  // Among those not detached; null: none.
  UcxSend* find(uint64_t cookie) {
    const auto found = std::find_if(all_.begin(), all_.end(), [cookie](const UcxSend& send) {
      return send.peer && !send.detached && send.cookie == cookie;
    });
    return found == all_.end() ? nullptr : &*found;
  }

 private:
  std::deque<UcxSend> all_;
  std::vector<UcxSend*> spare_;
};

}  // namespace omnihvd
