#include "protocol/number_set.h"

#include <algorithm>
#include <cstring>

namespace omnihvd {
namespace {

constexpr uint64_t bytes_for(uint64_t bits) { return (bits + 7) / 8; }

// How many low bits Elias-Fano splits off: floor(log2(range / count)) makes it shortest.
unsigned low_bits(uint64_t count, uint64_t range) {
  return 63u - unsigned(__builtin_clzll(range / count));
}
uint64_t high_bits(uint64_t count, uint64_t range, unsigned low) {
  return count + ((range - 1) >> low);
}

// Sets bits of a bitmap, in ascending order, a word at a time.
class BitSetter {
 public:
  BitSetter(uint8_t* bitmap, uint64_t bits) : at_(bitmap), end_(bitmap + bytes_for(bits)) {}
  ~BitSetter() { flush(); }
  void set(uint64_t bit) {
    if (bit - first_ >= 64) {
      flush();
      at_ += (bit - first_) / 64 * 8;
      first_ += (bit - first_) / 64 * 64;
      word_ = 0;
    }
    word_ |= uint64_t{1} << (bit - first_);
  }

 private:
  void flush() { std::memcpy(at_, &word_, end_ - at_ >= 8 ? 8 : size_t(end_ - at_)); }

  uint8_t* at_;
  uint8_t* const end_;
  uint64_t first_ = 0, word_ = 0;
};

// The bytes from `in` on, as many as there are before `end` and fit.
uint64_t load(const uint8_t* in, const uint8_t* end) {
  uint64_t word = 0;
  if (end - in >= 8)
    std::memcpy(&word, in, 8);
  else
    std::memcpy(&word, in, size_t(end - in));
  return word;
}

// Calls step(bit, i) for the i-th of `count` set bits, in order. False, perhaps before the last,
// unless there are exactly so many, and none beyond `bits`.
template <class Step>
bool each_bit(const uint8_t* bitmap, uint64_t bits, uint64_t count, Step step) {
  const uint8_t* const end = bitmap + bytes_for(bits);
  uint64_t i = 0;
  for (uint64_t first = 0; first < bits; first += 64) {
    uint64_t word = load(bitmap + first / 8, end);
    if (bits - first < 64 && word >> (bits - first)) return false;
    if (uint64_t(__builtin_popcountll(word)) > count - i) return false;
    for (; word; word &= word - 1) step(first + unsigned(__builtin_ctzll(word)), i++);
  }
  return i == count;
}

// The lowest `width` bits of each number, back to back.
void write_low(const uint32_t* numbers, uint64_t count, unsigned width, uint8_t* out) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t word = 0;
  unsigned filled = 0;
  for (uint64_t i = 0; i < count; ++i) {
    word |= (numbers[i] & mask) << filled;
    filled += width;
    if (filled < 32) continue;
    std::memcpy(out, &word, 4);
    out += 4;
    word >>= 32;
    filled -= 32;
  }
  std::memcpy(out, &word, bytes_for(filled));
}

class LowBits {
 public:
  LowBits(const uint8_t* in, uint64_t count, unsigned width)
      : in_(in), end_(in + bytes_for(count * width)), count_(count), width_(width) {}
  const uint8_t* end() const { return end_; }
  uint32_t at(uint64_t i) const {
    const uint64_t bit = i * width_;
    return uint32_t(load(in_ + bit / 8, end_) >> (bit % 8) & ((uint64_t{1} << width_) - 1));
  }
  bool rest_is_zero() const {
    const uint64_t bits = count_ * width_;
    return bits % 8 == 0 || in_[bits / 8] >> (bits % 8) == 0;
  }

 private:
  const uint8_t* const in_;
  const uint8_t* const end_;
  const uint64_t count_;
  const unsigned width_;
};

uint64_t elias_fano_bytes(uint64_t count, uint64_t range) {
  const unsigned low = low_bits(count, range);
  return bytes_for(count * low) + bytes_for(high_bits(count, range, low));
}

void write_elias_fano(const uint32_t* numbers, uint64_t count, uint64_t range, uint8_t* out) {
  const unsigned low = low_bits(count, range);
  write_low(numbers, count, low, out);
  BitSetter high(out + bytes_for(count * low), high_bits(count, range, low));
  for (uint64_t i = 0; i < count; ++i) high.set((uint64_t{numbers[i]} >> low) + i);
}

bool read_elias_fano(const uint8_t* in, uint64_t count, uint64_t range, uint32_t* numbers) {
  const unsigned width = low_bits(count, range);
  const LowBits low(in, count, width);
  uint64_t least = 0;
  bool ascend = true;
  const auto take = [&](uint64_t bit, uint64_t i) {
    const uint64_t number = (bit - i) << width | low.at(i);
    ascend &= number >= least;
    least = number + 1;
    numbers[i] = uint32_t(number);
  };
  return each_bit(low.end(), high_bits(count, range, width), count, take) && ascend &&
         least <= range && low.rest_is_zero();
}

}  // namespace

uint64_t set_bits(uint64_t count, uint64_t range) {
  if (count == 0 || count == range) return 0;
  const unsigned low = low_bits(count, range);
  return std::min(range, count * low + high_bits(count, range, low));
}

size_t set_bytes(uint64_t count, uint64_t range) {
  if (count == 0 || count == range) return 0;
  return std::min(elias_fano_bytes(count, range), bytes_for(range));
}

void write_set(const uint32_t* numbers, uint64_t count, uint64_t range, uint8_t* out) {
  if (count == 0 || count == range) return;
  if (elias_fano_bytes(count, range) < bytes_for(range))
    return write_elias_fano(numbers, count, range, out);
  BitSetter bitmap(out, range);
  for (uint64_t i = 0; i < count; ++i) bitmap.set(numbers[i]);
}

bool read_set(const uint8_t* in, uint64_t count, uint64_t range, uint32_t* numbers) {
  if (count == 0) return true;
  if (count == range) {
    for (uint64_t i = 0; i < count; ++i) numbers[i] = uint32_t(i);
    return true;
  }
  if (elias_fano_bytes(count, range) < bytes_for(range))
    return read_elias_fano(in, count, range, numbers);
  return each_bit(in, range, count, [&](uint64_t bit, uint64_t i) { numbers[i] = uint32_t(bit); });
}

}  // namespace omnihvd
