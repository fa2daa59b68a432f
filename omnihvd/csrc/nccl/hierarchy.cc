#include "nccl/hierarchy.h"

#include <thread>

#include "algorithms/host_grid.h"

namespace omnihvd {

NcclGrid::NcclGrid(int rank, const std::vector<std::string>& hosts) {
  const GridPlace place = place_in_grid(rank, hosts);
  local_index_ = place.local_index;
  local_size_ = static_cast<int>(place.inside.size());
  across_ = place.across;
  inside_ = place.inside;
}

NcclResult NcclGrid::async_error() {
  const NcclResult error = host_.async_error();
  return error == NcclResult::success ? between_.async_error() : error;
}

void NcclGrid::destroy() {
  between_.destroy();
  host_.destroy();
}

// Aborts both at once: each may keep the device from finishing the other's work.
void NcclGrid::abort() {
  std::thread other([this] { between_.abort(); });
  host_.abort();
  other.join();
}

}  // namespace omnihvd
