#include "transport/ucx/ucx_sends.h"

#include <algorithm>

namespace omnihvd {

UcxSend& UcxSends::take(void* peer, uint64_t cookie, const Slice* slices, size_t count) {
  if (spare_.empty()) spare_.push_back(&all_.emplace_back());
  UcxSend& send = *spare_.back();
  spare_.pop_back();
  send.peer = peer;
  send.cookie = cookie;
  send.iov.clear();
  for (size_t i = 0; i < count; ++i)
    if (slices[i].size > 0) send.iov.push_back({const_cast<void*>(slices[i].data), slices[i].size});
  return send;
}

void UcxSends::give_back(UcxSend& send) {
  send.peer = nullptr;
  send.detached = false;
  std::vector<char>().swap(send.copy);
  spare_.push_back(&send);
}

UcxSend* UcxSends::find(uint64_t cookie) {
  const auto found = std::find_if(all_.begin(), all_.end(), [cookie](const UcxSend& send) {
    return send.peer && !send.detached && send.cookie == cookie;
  });
  return found == all_.end() ? nullptr : &*found;
}

void detach(UcxSend& send) {
  send.detached = true;
  for (const ucp_dt_iov_t& slice : send.iov) {
    const char* data = static_cast<const char*>(slice.buffer);
    send.copy.insert(send.copy.end(), data, data + slice.length);
  }
  char* at = send.copy.data();
  for (ucp_dt_iov_t& slice : send.iov) {
    slice.buffer = at;
    at += slice.length;
  }
}

}  // namespace omnihvd
