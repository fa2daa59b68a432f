#include "base/sha256.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace omnihvd {
namespace {

uint32_t rotate_right(uint32_t x, int n) { return x >> n | x << (32 - n); }

// FIPS 180-4, 5.3.3.
constexpr uint32_t kInitial[8] = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};

// FIPS 180-4, 4.2.2.
constexpr uint32_t kRound[64] = {
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
};

void compress(const uint8_t* block, uint32_t* state) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 |
           uint32_t(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t s[8];
  std::memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t t1 = s[7] + s1 + choice + kRound[i] + w[i];
    const uint32_t s0 = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    std::memmove(s + 1, s, 7 * sizeof *s);
    s[4] += t1;
    s[0] = t1 + s0 + majority;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

Digest sha256(const std::string& data) {
  std::string padded = data;
  padded.push_back('\x80');
  padded.append((120 - padded.size() % 64) % 64, '\0');
  const uint64_t bits = uint64_t(data.size()) * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(char(bits >> shift));
  uint32_t state[8];
  std::memcpy(state, kInitial, sizeof state);
  for (size_t at = 0; at < padded.size(); at += 64)
    compress(reinterpret_cast<const uint8_t*>(padded.data()) + at, state);
  Digest digest;
  for (int i = 0; i < 32; ++i) digest[i] = uint8_t(state[i / 4] >> (24 - i % 4 * 8));
  return digest;
}

Digest hmac_sha256(const std::string& key, const std::string& data) {
  std::string block = key.size() > 64 ? to_string(sha256(key)) : key;
  block.resize(64, '\0');
  std::string inner = block, outer = block;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5C;
  return sha256(outer + to_string(sha256(inner + data)));
}

bool equal_in_constant_time(const void* a, const void* b, size_t size) {
  uint8_t difference = 0;
  for (size_t i = 0; i < size; ++i)
    difference |= uint8_t(static_cast<const uint8_t*>(a)[i] ^ static_cast<const uint8_t*>(b)[i]);
  return difference == 0;
}

std::string random_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t have = 0; have < size;) {
    const ssize_t n = ::getrandom(&bytes[have], size - have, 0);
    if (n < 0 && errno != EINTR)
      throw Error(std::string("no random numbers from the kernel: ") + std::strerror(errno));
    if (n > 0) have += size_t(n);
  }
  return bytes;
}

}  // namespace omnihvd
