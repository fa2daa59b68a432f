// The processors of its host that a rank may use.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "engine/session.h"

namespace omnihvd {

struct Cores {
  cpu_set_t allowed = {};  // the calling thread's affinity
  double limit = 0;        // of processor time, by cgroups; 0: none
};

// The calling thread's. root: where /proc and /sys are; tests have their own.
Cores cores_of_this_thread(const std::string& root = "");

// Can each of these ranks, all on one host, have a core that no other of them uses?
bool has_core_each(const std::vector<Cores>& ranks);

// Collective. The same for the ranks of the exchange, all on one host.
bool has_core_each(Exchange& exchange);

}  // namespace omnihvd
