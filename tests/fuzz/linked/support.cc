// The parts under test call this, and no target needs it.
#include "base/error.h"
#include "transport/registry.h"

namespace omnihvd {

std::unique_ptr<Transport> make_ucx_transport(const TransportOptions&) {
  throw Error("no fuzz target has UCX");
}

}  // namespace omnihvd
