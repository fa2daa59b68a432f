// Random jobs of whole sessions over a bad network: processes that agree on groups, sum in them,
// fail, leave, die, start again and form their groups anew, by the engine's own GroupAgreement,
// GroupStream and Dispatch, one thread, one seed.
//
// Checked, besides what bad_job.h has: a sum ends on each rank that lives within OMNIHVD_TIMEOUT
// and what ranks give each other to speak first, right or with an Error that names a process; where
// nothing happens but what a network does, none fails; those that cannot join are told the same; a
// group that has failed can be formed anew by who is left; and groups leave nothing behind.
#pragma once

#include <cstdint>

#include "simulator/csrc/bad_job.h"

namespace omnihvd::simulation {

// Throws Error: what went wrong, and in which job.
BadOutcome run_bad_session(uint64_t seed);

}  // namespace omnihvd::simulation
