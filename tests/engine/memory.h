// A transport between the threads of this process. Its ends can die like processes.
#pragma once

#include "transport/transport.h"

namespace omnihvd {

std::unique_ptr<Transport> make_memory_transport();
// Acts as if the process of this transport were killed: it sends and receives nothing more, and
// connected transports see it fail. Any thread. Throws Broken for another kind of transport.
void kill_memory_transport(Transport& transport);
// The next `times` calls of progress() on any of them throw an exception. Any thread.
void throw_in_memory_transports(int times);
// So many times, one of them loses the connection to another that lives. Any thread.
void lose_in_memory_transports(int times);

}  // namespace omnihvd
