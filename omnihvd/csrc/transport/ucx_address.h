// The address of a UCX transport: UCX's own, and who is behind it.
#pragma once

#include <string>

#include "transport/process_watch.h"

namespace omnihvd {

struct UcxAddress {
  ProcessId process;
  std::string hostname;
  std::string worker;  // of ucp_worker_get_address()
};

std::string encode_address(const UcxAddress& address);
// Throws Error when the bytes were not made by encode_address(): UCX would crash on them.
UcxAddress decode_address(const std::string& bytes);

}  // namespace omnihvd
