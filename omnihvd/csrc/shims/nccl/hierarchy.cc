#include "shims/nccl/hierarchy.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "shims/host_grid.h"
#include "shims/nccl/exchange.h"

namespace omnihvd {

NcclGrid::NcclGrid(int rank, const std::vector<std::string>& hosts) {
  const GridPlace place = place_in_grid(rank, hosts);
  local_index_ = place.local_index;
  local_size_ = static_cast<int>(place.inside.size());
  host_index_ =
      static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[rank]) - hosts.begin());
  across_ = place.across;
  inside_ = place.inside;
}

void NcclGrid::split(NcclComm comm, const std::atomic<bool>& aborted) {
  NcclComm host = nullptr;
  const NcclResult begun = nccl().comm_split(comm, host_index_, local_index_, &host, nullptr);
  settle(begun, comm, aborted, "ncclCommSplit inside the host");
  if (begun == NcclResult::in_progress) settle(begun, host, aborted, "ncclCommSplit");
  const std::lock_guard<std::mutex> lock(mutex_);
  host_ = host;
}

NcclResult NcclGrid::async_error() {
  const std::lock_guard<std::mutex> lock(mutex_);
  NcclResult error = NcclResult::success;
  if (host_ != nullptr) nccl().comm_get_async_error(host_, &error);
  return error;
}

NcclComm NcclGrid::host() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (host_ == nullptr) throw Error("the communicator was aborted");
  return host_;
}

NcclComm NcclGrid::take_host() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(host_, nullptr);
}

void NcclGrid::destroy() {
  if (NcclComm host = take_host()) nccl().comm_destroy(host);
}

void NcclGrid::abort() {
  if (NcclComm host = take_host()) nccl().comm_abort(host);
}

}  // namespace omnihvd
