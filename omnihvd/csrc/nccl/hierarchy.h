// Allreduce in two levels, for several hosts with the same number of GPUs on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter by NCCL, over NVLink; local index i has part i's sum
//   2. between the hosts: part i is summed over the H ranks with local index i
//   3. inside each host: allgather by NCCL of the L parts
// The parts are of the buffer with a union's blocks (union_steps.h).
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "algorithms/host_grid.h"
#include "nccl/part_comm.h"

namespace omnihvd {

class NcclGrid {
 public:
  // Local. hosts[rank] must form a grid (host_grid.h).
  NcclGrid(int rank, const std::vector<std::string>& hosts) : place_(place_in_grid(rank, hosts)) {}

  // Collective: makes the host's communicator, then the one of the ranks with this local index; see
  // PartComm::make().
  std::string make(NcclExchange& exchange) {
    const std::string why = host_.make(exchange, place_.inside);
    return why.empty() ? between_.make(exchange, place_.across) : why;
  }

  int local_index() const { return place_.local_index; }
  int local_size() const { return static_cast<int>(place_.inside.size()); }
  NcclComm host() { return host_.get(); }        // throws Error once it has ended
  NcclComm between() { return between_.get(); }  // the same
  NcclResult async_error() {
    const NcclResult error = host_.async_error();
    return error == NcclResult::success ? between_.async_error() : error;
  }
  void destroy() {
    between_.destroy();
    host_.destroy();
  }
  // Aborts both at once: each may keep the device from finishing the other's work.
  void abort() {
    std::thread other([this] { between_.abort(); });
    host_.abort();
    other.join();
  }

 private:
  const GridPlace place_;
  PartComm host_, between_;
};

}  // namespace omnihvd
