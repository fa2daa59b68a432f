// Allreduce in two levels, for several hosts with the same number of GPUs on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter by NCCL, over NVLink; local index i has part i's sum
//   2. between the hosts: the engine sums part i over the H ranks with local index i
//   3. inside each host: allgather by NCCL of the L parts
// The parts are equal, as NCCL wants them; the few elements behind them are NCCL's alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shims/nccl/part_comm.h"

namespace omnihvd {

class NcclGrid {
 public:
  // Local; hosts[rank] form a grid (see host_grid.h).
  NcclGrid(int rank, const std::vector<std::string>& hosts);

  // Collective: makes the host's communicator; see PartComm::split(). Throws Error.
  void split(const NcclExchange& exchange) { host_.split(exchange, host_index_, local_index_); }

  int local_index() const { return local_index_; }
  int local_size() const { return local_size_; }
  const std::vector<int>& across() const { return across_; }  // the ranks with this local index
  const std::vector<int>& inside() const { return inside_; }  // the ranks of this host
  NcclComm host() { return host_.get(); }                     // throws Error once it has ended
  NcclResult async_error() { return host_.async_error(); }
  void destroy() { host_.destroy(); }
  void abort() { host_.abort(); }

 private:
  int host_index_ = 0, local_index_ = 0, local_size_ = 0;
  std::vector<int> across_, inside_;
  PartComm host_;
};

}  // namespace omnihvd
