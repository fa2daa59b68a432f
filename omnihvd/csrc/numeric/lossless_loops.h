// The loops behind lossless.h: included once by each codec_<instruction set>.cc. As in
// codec_loops.h, nothing inline from elsewhere is called.
#pragma once

#include <cstring>

#include "numeric/lossless.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are cut as numbers");

namespace omnihvd {
namespace {

constexpr size_t kBatch = 64;  // elements

// Eight numbers: in the low bits of a byte each, and back to back from the lowest bit on.
struct BitPacking {
  unsigned bits;
  uint64_t in_8, low_8, low_16, low_32;  // the numbers' bits; of each pair, those of the lower one

  explicit BitPacking(unsigned of_each) : bits(of_each) {
    in_8 = ((uint64_t{1} << bits) - 1) * 0x0101010101010101ull;
    low_8 = ((uint64_t{1} << bits) - 1) * 0x0001000100010001ull;
    low_16 = ((uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001ull;
    low_32 = (uint64_t{1} << (4 * bits)) - 1;
  }
  uint64_t pack(uint64_t x) const {
    x = (x & low_8) | (x >> (8 - bits) & low_8 << bits);
    x = (x & low_16) | (x >> (16 - 2 * bits) & low_16 << (2 * bits));
    return (x & low_32) | (x >> (32 - 4 * bits) & low_32 << (4 * bits));
  }
  uint64_t unpack(uint64_t x) const {
    x = (x & low_32) | (x << (32 - 4 * bits) & low_32 << 32);
    x = (x & low_16) | (x << (16 - 2 * bits) & low_16 << 16);
    return (x & low_8) | (x << (8 - bits) & low_8 << 8);
  }
  // Sets the highest bit of each byte that holds a number of all ones.
  uint64_t all_ones(uint64_t x) const {
    constexpr uint64_t low = 0x7F7F7F7F7F7F7F7Full;
    return ~(((x ^ in_8) + low) | low);
  }
};

// The size of nearly all batches is known to the compiler.
template <size_t element>
void copy_batch(void* to, const void* from, size_t count) {
  if (count == kBatch)
    std::memcpy(to, from, kBatch * element);
  else
    std::memcpy(to, from, count * element);
}

// Splits a block into its first bytes, padded to whole batches with the largest of them, and its
// other bytes. Returns the largest.
template <class T>
uint8_t split(const uint8_t* block, size_t n, uint8_t* first, uint8_t* others) {
  uint8_t lanes[kBatch] = {};
  for (size_t i = 0; i < n; i += kBatch) {
    const size_t count = n - i < kBatch ? n - i : kBatch;
    alignas(64) T x[kBatch];
    if (count < kBatch) std::memset(x, 0, sizeof x);
    copy_batch<sizeof(T)>(x, block + i * sizeof(T), count);
    alignas(64) uint8_t bytes[sizeof(T)][kBatch];
    for (size_t j = 0; j < kBatch; ++j) x[j] = T(x[j] << 1 | x[j] >> (8 * sizeof(T) - 1));
    for (size_t byte = 0; byte < sizeof(T); ++byte)
      for (size_t j = 0; j < kBatch; ++j) bytes[byte][j] = uint8_t(x[j] >> (8 * byte));
    for (size_t j = 0; j < kBatch; ++j) {
      const uint8_t value = bytes[sizeof(T) - 1][j];
      lanes[j] = lanes[j] < value ? value : lanes[j];
    }
    std::memcpy(first + i, bytes[sizeof(T) - 1], kBatch);
    for (size_t byte = 0; byte + 1 < sizeof(T); ++byte)
      copy_batch<1>(others + byte * n + i, bytes[byte], count);
  }
  uint8_t largest = 0;
  for (const uint8_t lane : lanes) largest = largest < lane ? lane : largest;
  for (size_t i = n; i % kBatch; ++i) first[i] = largest;
  return largest;
}

// The bits per distance that make the block smallest; sets how many distances do not fit then.
unsigned best_bits(const uint8_t* distances, size_t n, size_t* far) {
  unsigned best = 0;
  size_t least = SIZE_MAX;
  for (unsigned bits = 1; bits < 8; ++bits) {
    const uint8_t limit = uint8_t((1u << bits) - 1);
    uint8_t lanes[kBatch] = {};
    for (size_t i = 0; i < n; i += kBatch)
      for (size_t j = 0; j < kBatch; ++j)
        lanes[j] = uint8_t(lanes[j] + (distances[i + j] >= limit ? 1 : 0));
    uint64_t pairs = 0;  // four sums
    for (size_t i = 0; i < kBatch; i += 8) {
      constexpr uint64_t even = 0x00FF00FF00FF00FFull;
      uint64_t eight;
      std::memcpy(&eight, lanes + i, 8);
      pairs += (eight & even) + (eight >> 8 & even);
    }
    const size_t beyond = size_t(pairs * 0x0001000100010001ull >> 48);
    const size_t bytes = (n * bits + 7) / 8 + beyond;
    if (bytes < least) {
      best = bits;
      least = bytes;
      *far = beyond;
    }
    if (beyond == 0) break;
  }
  return best;
}

// Writes the distances, and up to 7 bytes too many; then the first bytes that did not fit.
void write_distances(const uint8_t* distances, size_t n, uint8_t largest, unsigned bits, size_t far,
                     uint8_t* out) {
  const BitPacking packing(bits);
  const uint8_t limit = uint8_t((1u << bits) - 1);
  uint8_t first[kLosslessMost];
  size_t written = 0;
  for (size_t i = 0; i < n; i += kBatch) {
    alignas(64) uint8_t numbers[kBatch];
    alignas(64) uint64_t words[kBatch / 8], ones[kBatch / 8];
    for (size_t j = 0; j < kBatch; ++j)
      numbers[j] = distances[i + j] < limit ? distances[i + j] : limit;
    std::memcpy(words, numbers, sizeof words);
    for (size_t j = 0; j < kBatch / 8; ++j) ones[j] = packing.all_ones(words[j]);
    for (size_t j = 0; j < kBatch / 8; ++j) words[j] = packing.pack(words[j]);
    const size_t end = n - i < kBatch ? n - i : kBatch;
    for (size_t j = 0; j < end; j += 8) {
      std::memcpy(out, words + j / 8, 8);
      out += bits;
      for (uint64_t left = ones[j / 8]; left; left &= left - 1)
        first[written++] = uint8_t(largest - distances[i + j + size_t(__builtin_ctzll(left)) / 8]);
    }
  }
  std::memcpy(out - (-n % 8) * bits / 8, first, far);
}

// Reads the first bytes of a block, and up to 7 more. False: `far` differs from the number that do
// not fit.
bool read_first(const uint8_t* in, size_t n, uint8_t largest, unsigned bits, size_t far,
                uint8_t* first) {
  const BitPacking packing(bits);
  const uint8_t* const distances_end = in + (n * bits + 7) / 8;
  const uint8_t* next = distances_end;
  const uint8_t* const end = next + far;
  constexpr uint64_t ones = 0x0101010101010101ull, high = 0x80 * ones;
  const uint64_t minuend = largest * ones | high, sign = ~(largest * ones) & high;
  for (size_t i = 0; i < n; i += 8, in += bits) {
    uint64_t eight = 0;
    if (distances_end - in >= 8)
      std::memcpy(&eight, in, 8);
    else
      std::memcpy(&eight, in, size_t(distances_end - in));
    eight = packing.unpack(eight);
    const uint64_t bytes = (minuend - eight) ^ sign;  // largest - each, without borrowing
    std::memcpy(first + i, &bytes, 8);
    for (uint64_t left = packing.all_ones(eight); left; left &= left - 1) {
      if (next == end) return false;
      first[i + size_t(__builtin_ctzll(left)) / 8] = *next++;
    }
  }
  return next == end;
}

template <class T>
size_t encode_block(const uint8_t* block, size_t n, uint8_t* out) {
  alignas(64) uint8_t first[kLosslessMost];
  const uint8_t largest = split<T>(block, n, first, out + kLosslessHeader);
  for (size_t i = 0; i < n; i += kBatch)
    for (size_t j = 0; j < kBatch; ++j) first[i + j] = uint8_t(largest - first[i + j]);
  size_t far = 0;
  const unsigned bits = best_bits(first, n, &far);
  const size_t at = kLosslessHeader + n * (sizeof(T) - 1), bytes = at + (n * bits + 7) / 8 + far;
  if (bytes > n * sizeof(T) * kLosslessSixteenths / 16) return 0;
  const uint8_t header[kLosslessHeader] = {largest, uint8_t(bits), uint8_t(far), uint8_t(far >> 8)};
  std::memcpy(out, header, sizeof header);
  write_distances(first, n, largest, bits, far, out + at);
  return bytes;
}

template <class T>
bool decode_block(const uint8_t* code, size_t n, uint8_t* block) {
  alignas(64) uint8_t first[kLosslessMost];
  const uint8_t* const others = code + kLosslessHeader;
  if (!read_first(others + n * (sizeof(T) - 1), n, code[0], code[1], code[2] | size_t{code[3]} << 8,
                  first))
    return false;
  for (size_t i = 0; i < n; i += kBatch) {
    const size_t count = n - i < kBatch ? n - i : kBatch;
    alignas(64) uint8_t bytes[sizeof(T)][kBatch];
    for (size_t byte = 0; byte + 1 < sizeof(T); ++byte)
      copy_batch<1>(bytes[byte], others + byte * n + i, count);
    std::memcpy(bytes[sizeof(T) - 1], first + i, kBatch);
    alignas(64) T x[kBatch] = {};
    for (size_t byte = 0; byte < sizeof(T); ++byte)
      for (size_t j = 0; j < kBatch; ++j) x[j] = T(x[j] | T(T{bytes[byte][j]} << (8 * byte)));
    for (size_t j = 0; j < kBatch; ++j) x[j] = T(x[j] >> 1 | x[j] << (8 * sizeof(T) - 1));
    copy_batch<sizeof(T)>(block + i * sizeof(T), x, count);
  }
  return true;
}

size_t encode_lossless(size_t element, const void* block, size_t n, uint8_t* out) {
  if (n > kLosslessMost || n * element < kLosslessLeast) return 0;
  const auto* const from = static_cast<const uint8_t*>(block);
  switch (element) {
    case 2: return encode_block<uint16_t>(from, n, out);
    case 4: return encode_block<uint32_t>(from, n, out);
    case 8: return encode_block<uint64_t>(from, n, out);
    default: return 0;
  }
}

bool decode_lossless(size_t element, const uint8_t* code, size_t n, void* block) {
  auto* const to = static_cast<uint8_t*>(block);
  switch (element) {
    case 2: return decode_block<uint16_t>(code, n, to);
    case 4: return decode_block<uint32_t>(code, n, to);
    default: return decode_block<uint64_t>(code, n, to);
  }
}

}  // namespace
}  // namespace omnihvd
