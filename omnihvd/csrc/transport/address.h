// The common part of all transport addresses: it names the transport and detects damage.
#pragma once

#include <string>

namespace omnihvd {

constexpr char kUcxAddress[] = "omnihvd ucx 4", kUdpAddress[] = "omnihvd udp 1";

std::string wrap_address(const char* magic, const std::string& body);
// Returns the body. Throws Error unless wrap_address() made the bytes with this magic.
std::string unwrap_address(const char* magic, const std::string& bytes);

}  // namespace omnihvd
