// All fuzz targets share this: the input as numbers and bytes, and how an oracle fails.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace omnihvd::fuzz {

using Bytes = std::vector<uint8_t>;

// An oracle: ends the process, so that libFuzzer keeps the input.
#define MUST(condition)                                                          \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: not (%s)\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                              \
    }                                                                            \
  } while (0)

// Numbers and bytes from the front of the input; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  size_t left() const { return size_t(end_ - at_); }

  template <class T>
  T number() {
    T value{};
    const size_t size = std::min(sizeof value, left());
    if (size > 0) std::memcpy(&value, at_, size);
    at_ += size;
    return value;
  }
  bool flag() { return number<uint8_t>() & 1; }
  // least .. most
  uint64_t between(uint64_t least, uint64_t most) {
    const uint64_t range = most - least;
    const uint64_t drawn = range < 256     ? number<uint8_t>()
                           : range < 65536 ? number<uint16_t>()
                                           : number<uint64_t>();
    return range == UINT64_MAX ? drawn : least + drawn % (range + 1);
  }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[between(0, all.size() - 1)];
  }
  // Memory of exactly this size, so that a sanitizer sees reads beyond it.
  Bytes bytes(size_t size) {
    Bytes all(size);
    const size_t there = std::min(size, left());
    if (there > 0) std::memcpy(all.data(), at_, there);
    at_ += there;
    return all;
  }
  Bytes rest() { return bytes(left()); }
  std::string text() {
    const Bytes all = rest();
    return {all.begin(), all.end()};
  }

 private:
  const uint8_t* at_;
  const uint8_t* const end_;
};

// Different for each rank, element and sum. Sums of these wrap around.
inline int32_t value(uint32_t rank, uint64_t i, uint64_t sum = 0) {
  return int32_t(uint32_t(i + 1) * 0x9E3779B1u + rank * 0x85EBCA77u + uint32_t(sum)) | 1;
}

// Takes the next message of one of these ways, which the input chooses. ways: by their ends; not
// empty, and none of them is.
template <class Ends, class Message>
std::pair<Ends, Message> take_next(Input& in, std::map<Ends, std::deque<Message>>* ways) {
  auto way = ways->begin();
  std::advance(way, long(in.between(0, ways->size() - 1)));
  std::pair<Ends, Message> next(way->first, std::move(way->second.front()));
  way->second.pop_front();
  if (way->second.empty()) ways->erase(way);
  return next;
}

// False if the product refuses the input by its Error. Any other exception ends the process.
template <class Function>
bool accepted(Function function) {
  try {
    function();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace omnihvd::fuzz

// A target: FUZZ(in) { ... } with `in` its Input.
#define FUZZ(in)                                                            \
  static void fuzz_one(omnihvd::fuzz::Input& in);                           \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    omnihvd::fuzz::Input input(data, size);                                 \
    fuzz_one(input);                                                        \
    return 0;                                                               \
  }                                                                         \
  static void fuzz_one(omnihvd::fuzz::Input& in)
