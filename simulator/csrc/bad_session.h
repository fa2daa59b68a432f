// Random jobs with fault injection, as FoundationDB and TigerBeetle look for their bugs: processes
// agree on groups, sum in them, fail, leave, die, start again and form their groups anew. The
// engine's own GroupAgreement, GroupStream and Dispatch, over the protocol's loss recovery, run in
// one thread, from one seed.
//
// Checked: a sum that a rank has finished is right, whatever else happens. Each surviving rank's
// sum ends within OMNIHVD_TIMEOUT and the time that ranks let each other speak first, either right
// or with an Error that names a process; without faults other than a network's, no sum fails.
// Memory that a message refers to does not change before the message has arrived. Ranks that cannot
// join all get the same reason; the survivors can form a failed group anew; and groups leave
// nothing behind.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace omnihvd::simulation {

struct BadOutcome {
  std::string job;                         // in words
  std::map<std::string, uint64_t> counts;  // faults, by name
  uint64_t sums = 0;                       // that ranks finished, and right
  uint64_t events = 0, messages = 0;
  double seconds = 0;  // simulated
};

// long_sums: of many rounds, in a job that seldom loses processes. Throws Error, which says what
// went wrong and in which job.
BadOutcome run_bad_session(uint64_t seed, bool long_sums);

}  // namespace omnihvd::simulation
