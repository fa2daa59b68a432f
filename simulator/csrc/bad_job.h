// Random jobs over a bad network, as FoundationDB and TigerBeetle look for their bugs: the
// protocol's own state machines, wire format and loss recovery, one thread, one seed.
//
// Checked: the sum that a rank holds when it is done is right, whatever else happens; all ranks are
// done in the end, unless a host has stopped or the network stays cut; memory that a message refers
// to does not change before the message has come; and memory is as bounded as headers say.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "simulator/csrc/bad_network.h"

namespace omnihvd::simulation {

struct BadOutcome {
  std::string job;                         // in words
  std::map<std::string, uint64_t> counts;  // of what went wrong, by its name
  uint64_t sums = 0;                       // that ranks had right in the end
  uint64_t unfinished = 0;                 // and those that ended by what no protocol could help
  uint64_t events = 0, messages = 0;
  double seconds = 0;  // simulated
};

std::map<std::string, uint64_t> named(const BadNetwork::Counts& counts);

// Throws Error: what went wrong, and in which job.
BadOutcome run_bad_job(uint64_t seed);

}  // namespace omnihvd::simulation
