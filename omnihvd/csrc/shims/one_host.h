// Sums over shared memory where all ranks of a communicator are on one host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/session.h"
#include "shared/shared_sum.h"

namespace omnihvd {

// Collective. Null, on all ranks alike: they stream, as they are on several hosts, have no memory
// in common, or OMNIHVD_WAY says so. Throws Error when the exchange fails.
std::unique_ptr<SharedSum> shared_sum_of(Exchange& exchange, const Settings& agreed,
                                         const std::vector<std::string>& hosts);

}  // namespace omnihvd
