// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), to authenticate connections. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace omnihvd {

using Digest = std::array<uint8_t, 32>;

Digest sha256(const std::string& data);
Digest hmac_sha256(const std::string& key, const std::string& data);
inline std::string to_string(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Takes the same time wherever the two differ, so that timing reveals nothing.
bool equal_in_constant_time(const void* a, const void* b, size_t size);

// Bytes from the kernel's random source. Throws Error if there is none.
std::string random_bytes(size_t size);

}  // namespace omnihvd
