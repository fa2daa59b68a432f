// A transport between the threads of this process, whose ends can die like processes.
#pragma once

#include "transport/transport.h"

namespace omnihvd {

std::unique_ptr<Transport> make_memory_transport();
// As if the process of this transport were killed: it sends and receives nothing more, and those
// connected to it see it fail. Any thread. Throws Broken for another kind of transport.
void kill_memory_transport(Transport& transport);
// So often whoever lets one of them progress gets an exception. Any thread.
void throw_in_memory_transports(int times);

}  // namespace omnihvd
