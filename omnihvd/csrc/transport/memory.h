// For tests: what make_memory_transport() made can die like a process.
#pragma once

#include "transport/transport.h"

namespace omnihvd {

// As if the process of this transport were killed: it sends and receives nothing more, and those
// connected to it see it fail. Any thread. Throws Broken for another kind of transport.
void kill_memory_transport(Transport& transport);

}  // namespace omnihvd
