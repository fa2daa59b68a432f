// The transports by name (OMNIHVD_TRANSPORT): each is one row, and nothing else in the core knows
// one. Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace omnihvd {

// Throws Error if the transport is not available.
using MakeTransport = std::unique_ptr<Transport> (*)(const TransportOptions& options);

void register_transport(const std::string& name, MakeTransport make);
std::vector<std::string> transport_names();
// Loads the transport's library if need be. Throws Error.
std::unique_ptr<Transport> make_transport(const std::string& name,
                                          const TransportOptions& options = {});

}  // namespace omnihvd
