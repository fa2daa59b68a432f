// Packs and unpacks what processes exchange during bootstrap. Little endian.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"

namespace omnihvd {

class BytesWriter {
 public:
  void u64(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(const std::string& value) {
    u64(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Detects damaged bytes, not malicious ones.
inline uint64_t fnv1a(const void* data, size_t size, uint64_t so_far = 0xCBF29CE484222325ull) {
  const auto* const at = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) so_far = (so_far ^ at[i]) * 0x100000001B3ull;
  return so_far;
}

// Throws Error if the bytes end early, or a number is too large for its field.
class BytesReader {
 public:
  explicit BytesReader(const std::string& bytes) : bytes_(bytes) {}
  uint64_t u64() {
    uint64_t value;
    need(sizeof value);
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  template <class T>
  T number() {
    const uint64_t value = u64();
    if (value > std::numeric_limits<T>::max()) too_large();
    return T(value);
  }
  // For numbers that it cannot judge.
  [[noreturn]] static void too_large() {
    throw Error("malformed description of a group: a number is too large for its field");
  }
  // Reads how many items follow; each takes at least one byte.
  uint64_t count() {
    const uint64_t n = u64();
    need(n);
    return n;
  }
  std::string text() {
    const uint64_t size = count();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  void need(uint64_t size) const {
    if (size > bytes_.size() - at_) throw Error("malformed description of a group: it ends early");
  }
  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace omnihvd
