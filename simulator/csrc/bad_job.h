// Random jobs with fault injection, as FoundationDB and TigerBeetle look for their bugs: the
// protocol's own state machines, wire format and loss recovery, one thread, one seed.
//
// Checked: a sum that a rank has finished is right, whatever else happens; all ranks finish in the
// end, unless a host has stopped or the network stays partitioned; memory that a message refers to
// does not change before the message has arrived; and memory stays within the bounds that the
// headers state.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "simulator/csrc/bad_network.h"

namespace omnihvd::simulation {

struct BadOutcome {
  std::string job;                         // in words
  std::map<std::string, uint64_t> counts;  // faults, by name
  uint64_t sums = 0;                       // that ranks finished, and right
  uint64_t unfinished = 0;                 // ended by a fault that no protocol survives
  uint64_t events = 0, messages = 0;
  double seconds = 0;  // simulated
};

std::map<std::string, uint64_t> named(const BadNetwork::Counts& counts);

// Throws Error, which says what went wrong and in which job.
BadOutcome run_bad_job(uint64_t seed);

}  // namespace omnihvd::simulation
