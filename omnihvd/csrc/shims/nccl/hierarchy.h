// Allreduce in two levels, for several hosts with the same number of GPUs on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter by NCCL, over NVLink; local index i has part i's sum
//   2. between the hosts: part i is summed over the H ranks with local index i
//   3. inside each host: allgather by NCCL of the L parts
// Tensors that are streamed have equal parts, which the engine sums between the hosts; the few
// elements behind them are NCCL's alone. Of sums on unions (union_steps.h) it is the buffer with
// the union's blocks that has parts, and NCCL that sums them.
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

  // Collective: makes the host's communicator, or that of the ranks with this local index; see
  // PartComm::make().
  std::string make_host(NcclExchange& exchange) { return host_.make(exchange, inside_); }
  std::string make_between(NcclExchange& exchange) { return between_.make(exchange, across_); }

  int local_index() const { return local_index_; }
  int local_size() const { return local_size_; }
  const std::vector<int>& across() const { return across_; }  // the ranks with this local index
  const std::vector<int>& inside() const { return inside_; }  // the ranks of this host
  NcclComm host() { return host_.get(); }                     // throws Error once it has ended
  NcclComm between() { return between_.get(); }               // the same
  NcclResult async_error();
  void destroy();
  void abort();

 private:
  int local_index_ = 0, local_size_ = 0;
  std::vector<int> across_, inside_;
  PartComm host_, between_;
};

}  // namespace omnihvd
