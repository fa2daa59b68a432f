// How many engine threads a process has if OMNIHVD_STREAMS is "auto".
#pragma once

#include <cstdint>
#include <string>

namespace omnihvd {

// As many as keep a link busy, if each can have two cores to itself; at least one, at most 8. Pure.
// link_bytes_per_s: each way; 0: unknown. cores: of this process.
uint32_t streams_for(double link_bytes_per_s, uint32_t cores);

// The rate of the fastest network device that is up, in bytes/s; 0: unknown. sysfs: where that is.
double fastest_link(const std::string& sysfs = "/sys");

// For this process: its share of the host's cores, by its affinity and its launcher's variables, as
// they were at the first call. Any thread.
uint32_t automatic_streams();

}  // namespace omnihvd
