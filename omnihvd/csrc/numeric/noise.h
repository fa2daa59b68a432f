// Counter-based random numbers for loops of every instruction set (codec_loops.h): from a block's
// key and an element's place in the block.
#pragma once

#include <cstdint>

namespace omnihvd {
namespace {

struct Noise {
  uint32_t begin, turn;
  explicit Noise(uint64_t key) : begin(uint32_t(key)), turn(uint32_t(key >> 32)) {}
  uint32_t at(uint32_t i) const {
    uint32_t x = begin + i * 0x9E3779B9u;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return (x ^ (x >> 16)) ^ turn;
  }
};

}  // namespace
}  // namespace omnihvd
