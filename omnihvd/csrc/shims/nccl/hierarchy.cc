#include "shims/nccl/hierarchy.h"

#include <algorithm>

#include "sums/host_grid.h"

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

}  // namespace omnihvd
