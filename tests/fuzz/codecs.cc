// The lossy codecs (numeric/codec.h): every implementation writes and reads the same bits; what is
// written is readable; a decoded value is no further from the block than its codec allows.
#include <cmath>
#include <optional>

#include "input.h"
#include "numeric/codec.h"

using namespace omnihvd;
using fuzz::Bytes;

constexpr const char* kNames[] = {"portable", "avx2", "avx512"};

static std::vector<float> drawn_floats(fuzz::Input& in, size_t n) {
  std::vector<float> block(n);
  const bool any = in.flag();
  const int8_t scale = in.number<int8_t>();
  for (float& x : block) {
    if (any)
      x = in.number<float>();
    else
      x = std::ldexp(float(in.number<int8_t>()), scale);
  }
  return block;
}

// Is y a value that x may become? largest: the largest magnitude of the block.
static bool is_near(Quantizer quantizer, double x, double y, double largest, unsigned bits) {
  const double levels = quantizer == Quantizer::ternary ? 1 : (1 << (bits - 1)) - 1;
  switch (quantizer) {
    case Quantizer::powers:
      return std::abs(y) <= std::max(2 * largest, 0x1p-126) && (x == 0 ? y == 0 : x * y >= 0);
    case Quantizer::sign:
    case Quantizer::two_means: return std::abs(y) <= largest * 1.001;
    default: return std::abs(y - x) <= largest / levels * 1.001 + 1e-37;
  }
}

FUZZ(in) {
  Codec codec{CodecKind(in.between(1, 6)), in.one_of<uint8_t>({0, 2, 4, 8}), in.flag(), 0};
  if (!is_valid(codec)) return;
  const Coding coding = in.flag() ? sum_coding(codec) : contribution_coding(codec);
  const uint64_t key = in.number<uint64_t>();
  const size_t n = in.between(1, 300), size = coded_bytes(coding, n);
  const bool decodes = in.flag();
  std::vector<float> block;
  Bytes code;
  if (decodes) {
    code = in.bytes(size);
    if (!is_coded(coding, code.data())) return;
  } else {
    block = drawn_floats(in, n);
  }
  std::optional<Bytes> first;
  for (const char* const name : kNames) {
    const CodecOps* const ops = codec_ops_named(name);
    if (!ops) continue;
    if (!decodes) {
      code.assign(size, 0);
      if (!ops->encode(coding, key, block.data(), n, code.data())) code.clear();
      MUST(code.empty() || is_coded(coding, code.data()));
    }
    Bytes made = code;
    if (!code.empty()) {
      std::vector<float> back(n);
      ops->decode(coding, code.data(), n, back.data());
      const auto* const bytes = reinterpret_cast<const uint8_t*>(back.data());
      made.insert(made.end(), bytes, bytes + n * sizeof(float));
      double largest = 0;
      for (const float x : block) largest = std::max<double>(largest, std::abs(x));
      for (size_t i = 0; i < block.size(); ++i)
        MUST(is_near(coding.quantizer, block[i], back[i], largest, coding.bits));
    }
    if (!first) first = made;
    MUST(*first == made);
  }
}
