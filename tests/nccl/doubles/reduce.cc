#include "reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace doubles {
namespace {

enum Op { sum, prod, max, min, avg };

struct Bfloat16 {
  uint16_t bits = 0;
  Bfloat16() = default;
  explicit Bfloat16(float value) {  // to the nearest, and of two the even one
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    bits = value != value ? 0x7fc0 : uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

template <typename T, typename Wide>
std::string reduce(const std::vector<std::string>& inputs, int op) {
  std::string out(inputs[0].size(), 0);
  for (size_t at = 0; at < out.size(); at += sizeof(T)) {
    const auto value_of = [&](const std::string& input) {
      T value;
      std::memcpy(&value, &input[at], sizeof value);
      return static_cast<Wide>(value);
    };
    Wide total = value_of(inputs[0]);
    for (size_t i = 1; i < inputs.size(); ++i) {
      const Wide value = value_of(inputs[i]);
      if (op == sum || op == avg) total += value;
      if (op == prod) total *= value;
      if (op == max) total = std::max(total, value);
      if (op == min) total = std::min(total, value);
    }
    if (op == avg) total /= static_cast<Wide>(inputs.size());
    const T result = static_cast<T>(total);
    std::memcpy(&out[at], &result, sizeof result);
  }
  return out;
}

}  // namespace

size_t width_of(int type) {
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < 10 ? widths[type] : 0;
}

std::string reduced(const std::vector<std::string>& inputs, int type, int op) {
  switch (type) {
    case 0: return reduce<int8_t, int64_t>(inputs, op);
    case 1: return reduce<uint8_t, uint64_t>(inputs, op);
    case 2: return reduce<int32_t, int64_t>(inputs, op);
    case 3: return reduce<uint32_t, uint64_t>(inputs, op);
    case 4:  // sums wrap around, as on a GPU
      return op == sum ? reduce<int64_t, uint64_t>(inputs, op)
                       : reduce<int64_t, int64_t>(inputs, op);
    case 5: return reduce<uint64_t, uint64_t>(inputs, op);
    case 6: return reduce<_Float16, float>(inputs, op);
    case 7: return reduce<float, double>(inputs, op);
    case 8: return reduce<double, double>(inputs, op);
    default: return reduce<Bfloat16, float>(inputs, op);
  }
}

}  // namespace doubles
