// Random jobs of whole sessions with fault injection: processes agree on groups, sum in them, fail,
// leave, die, start again and form their groups anew. The engine's own GroupAgreement, GroupStream
// and Dispatch run in one thread, from one seed.
//
// Checked, besides the list in bad_job.h: a sum ends on each surviving rank within OMNIHVD_TIMEOUT
// and the time that ranks let each other speak first, either right or with an Error that names a
// process; without faults other than a network's, no sum fails; ranks that cannot join all get the
// same reason; the survivors can form a failed group anew; and groups leave nothing behind.
#pragma once

#include <cstdint>

#include "simulator/csrc/bad_job.h"

namespace omnihvd::simulation {

// Throws Error, which says what went wrong and in which job.
BadOutcome run_bad_session(uint64_t seed);

}  // namespace omnihvd::simulation
