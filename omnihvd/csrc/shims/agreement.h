// What the ranks of a communicator must know of each other before their first sum.
#pragma once

#include <string>
#include <vector>

#include "session/session.h"

namespace omnihvd {

struct Agreement {
  Settings settings;               // this process's own, and rank 0's where all must agree
  std::vector<std::string> hosts;  // of each rank
};

// Collective. Throws Error on all ranks if the settings of one are wrong, with the rank.
Agreement agree(Exchange& exchange);

}  // namespace omnihvd
