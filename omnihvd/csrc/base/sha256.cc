#include "base/sha256.h"

#include <sys/random.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace omnihvd {
namespace {

uint32_t rotate_right(uint32_t x, int n) { return x >> n | x << (32 - n); }

// The constants are, by definition, the fractional bits of roots of the first primes; long double
// holds the 32 bits that are needed.
struct Constants {
  uint32_t initial[8];
  uint32_t round[64];
  Constants() {
    int found = 0;
    for (int candidate = 2; found < 64; ++candidate) {
      bool prime = true;
      for (int d = 2; d * d <= candidate; ++d) prime = prime && candidate % d;
      if (!prime) continue;
      if (found < 8) initial[found] = fraction(std::sqrt(static_cast<long double>(candidate)));
      round[found++] = fraction(std::cbrt(static_cast<long double>(candidate)));
    }
  }
  static uint32_t fraction(long double x) {
    return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L);
  }
};

void compress(const Constants& k, const uint8_t* block, uint32_t* state) {
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
    const uint32_t t1 = s[7] + s1 + choice + k.round[i] + w[i];
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
  static const Constants constants;
  std::string padded = data;
  padded.push_back('\x80');
  padded.append((120 - padded.size() % 64) % 64, '\0');
  const uint64_t bits = uint64_t(data.size()) * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(char(bits >> shift));
  uint32_t state[8];
  std::memcpy(state, constants.initial, sizeof state);
  for (size_t at = 0; at < padded.size(); at += 64)
    compress(constants, reinterpret_cast<const uint8_t*>(padded.data()) + at, state);
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

bool equal_in_constant_time(const std::string& a, const std::string& b) {
  return a.size() == b.size() &&
         equal_in_constant_time(reinterpret_cast<const uint8_t*>(a.data()),
                                reinterpret_cast<const uint8_t*>(b.data()), a.size());
}

bool equal_in_constant_time(const uint8_t* a, const uint8_t* b, size_t size) {
  uint8_t difference = 0;
  for (size_t i = 0; i < size; ++i) difference |= uint8_t(a[i] ^ b[i]);
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
