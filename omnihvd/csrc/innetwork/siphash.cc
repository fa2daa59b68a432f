#include "innetwork/siphash.h"

#include <cstring>

namespace omnihvd {
namespace {

struct State {
  uint64_t a, b, c, d;

  static uint64_t turned(uint64_t x, unsigned by) { return x << by | x >> (64 - by); }
  void round() {
    a += b;
    c += d;
    b = turned(b, 13) ^ a;
    d = turned(d, 16) ^ c;
    a = turned(a, 32);
    c += b;
    a += d;
    b = turned(b, 17) ^ c;
    d = turned(d, 21) ^ a;
    c = turned(c, 32);
  }
  void take(uint64_t word) {
    d ^= word;
    round();
    round();
    a ^= word;
  }
};

}  // namespace

uint64_t siphash(const SipKey& key, const uint8_t* data, size_t size) {
  State state{key[0] ^ 0x736F6D6570736575u, key[1] ^ 0x646F72616E646F6Du,
              key[0] ^ 0x6C7967656E657261u, key[1] ^ 0x7465646279746573u};
  const uint8_t* const end = data + size / 8 * 8;
  for (; data != end; data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    state.take(word);
  }
  uint64_t last = uint64_t(size) << 56;
  for (size_t i = 0; i < size % 8; ++i) last |= uint64_t(end[i]) << 8 * i;
  state.take(last);
  state.c ^= 0xFF;
  for (int i = 0; i < 4; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

}  // namespace omnihvd
