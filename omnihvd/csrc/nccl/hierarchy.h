// Allreduce in two levels, for several hosts with the same number of GPUs on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter by NCCL, over NVLink; local index i has part i's sum
//   2. between the hosts: part i is summed over the H ranks with local index i
//   3. inside each host: allgather by NCCL of the L parts
// The parts are of the buffer with a union's blocks (union_steps.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nccl/part_comm.h"

namespace omnihvd {

class NcclGrid {
 public:
  // Local. hosts[rank] must form a grid (host_grid.h).
  NcclGrid(int rank, const std::vector<std::string>& hosts);

  // Collective: makes the host's communicator, or the one of the ranks with this local index; see
  // PartComm::make().
  std::string make_host(NcclExchange& exchange) { return host_.make(exchange, inside_); }
  std::string make_between(NcclExchange& exchange) { return between_.make(exchange, across_); }

  int local_index() const { return local_index_; }
  int local_size() const { return local_size_; }
  NcclComm host() { return host_.get(); }        // throws Error once it has ended
  NcclComm between() { return between_.get(); }  // the same
  NcclResult async_error();
  void destroy();
  void abort();

 private:
  int local_index_ = 0, local_size_ = 0;
  std::vector<int> across_, inside_;  // the ranks with this local index; of this host
  PartComm host_, between_;
};

}  // namespace omnihvd
