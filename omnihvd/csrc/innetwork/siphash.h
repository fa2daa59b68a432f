// SipHash-2-4 (Aumasson and Bernstein, 2012): a short authentication code for short messages, which
// nobody can compute without the key. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace omnihvd {

using SipKey = std::array<uint64_t, 2>;

uint64_t siphash(const SipKey& key, const uint8_t* data, size_t size);

}  // namespace omnihvd
