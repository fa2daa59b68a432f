// The number of progress threads of a process if OMNIHVD_STREAMS is "auto".
#pragma once

#include <cstdint>
#include <string>

namespace omnihvd {

// As many as keep a link busy, if each can have two cores to itself; at least 1, at most 8. Pure.
// link_bytes_per_s: in each direction; 0: unknown. cores: of this process.
uint32_t streams_for(double link_bytes_per_s, uint32_t cores);

// The cores of each of a host's ranks. Pure. allowed: to this rank; 0: unknown. limit: of processor
// time, of all ranks; 0: none. online: the host's.
uint32_t cores_each(uint32_t allowed, double limit, uint32_t online, uint32_t ranks);

// The rate of the fastest network device that is up, in bytes/s; 0: unknown. sysfs: its mount
// point.
double fastest_link(const std::string& sysfs = "/sys");

// For this process: from its share of the host's cores, by its affinity, its cgroup's limit and
// its launcher's variables at the first call. Any thread.
uint32_t automatic_streams();

}  // namespace omnihvd
