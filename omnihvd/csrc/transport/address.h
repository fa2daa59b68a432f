// What all addresses of transports have in common: they name their transport, and tell damage.
#pragma once

#include <string>

namespace omnihvd {

constexpr char kUcxAddress[] = "omnihvd ucx 4", kUdpAddress[] = "omnihvd udp 1";

std::string wrap_address(const char* magic, const std::string& body);
// The body. Throws Error when the bytes were not made by wrap_address() with this magic.
std::string unwrap_address(const char* magic, const std::string& bytes);

}  // namespace omnihvd
