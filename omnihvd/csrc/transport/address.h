// The common part of all transport addresses: it names the transport and detects damage.
#pragma once

#include <string>

namespace omnihvd {

// magic: "omnihvd", the transport's name and a version of the address.
std::string wrap_address(const char* magic, const std::string& body);
// Returns the body. Throws Error unless wrap_address() made the bytes with this magic.
std::string unwrap_address(const char* magic, const std::string& bytes);

}  // namespace omnihvd
