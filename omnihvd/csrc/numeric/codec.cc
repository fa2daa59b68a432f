#include "numeric/codec.h"

#include <cmath>
#include <cstring>

#include "numeric/codec_ops_set.h"
#include "numeric/cpu.h"
#include "numeric/lossless.h"

namespace omnihvd {
namespace {

constexpr uint8_t kSumBits = 4;  // if contributions have fewer

// A bijection that lets every bit of x change every bit of the result (splitmix64's).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

bool is_valid(const Codec& codec) {
  switch (codec.kind) {
    case CodecKind::none:
    case CodecKind::natural:
    case CodecKind::terngrad:
    case CodecKind::sign:
    case CodecKind::one_bit:
    case CodecKind::lossless: return codec.bits == 0;
    case CodecKind::qsgd: return codec.bits == 2 || codec.bits == 4 || codec.bits == 8;
    case CodecKind::integer: return codec.bits == 4 || codec.bits == 8;
  }
  return false;
}

std::string name_of(const Codec& codec) {
  constexpr const char* names[] = {"none", "natural", "qsgd", "terngrad",
                                   "sign", "one_bit", "int",  "lossless"};
  const std::string name = names[static_cast<int>(codec.kind)];
  return codec.bits ? name + std::to_string(codec.bits) : name;
}

std::string sum_text(uint64_t count, DType dtype, const Codec& codec, bool scatters) {
  return std::to_string(count) + ' ' + name_of(dtype) +
         (codec.kind != CodecKind::none ? " by " + name_of(codec) : "") +
         (scatters ? ", a share for each rank" : "");
}

const char* disagreement(const Codec& one, const Codec& other) {
  const bool same = one.kind == other.kind && one.bits == other.bits;
  return same && one.seed != other.seed
             ? "; but these are not the same tensors, or not of the same step"
             : "";
}

Coding contribution_coding(const Codec& codec) {
  if (codec.of_sums) return sum_coding(codec);
  switch (codec.kind) {
    case CodecKind::qsgd: return {Quantizer::random_levels, codec.bits};
    case CodecKind::terngrad: return {Quantizer::ternary, 2};
    case CodecKind::sign: return {Quantizer::sign, 1};
    case CodecKind::one_bit: return {Quantizer::two_means, 1};
    case CodecKind::integer: return {Quantizer::nearest_level, codec.bits};
    default: return {Quantizer::powers, 8};
  }
}

Coding sum_coding(const Codec& codec) {
  switch (codec.kind) {
    case CodecKind::qsgd:
    case CodecKind::integer: return {Quantizer::random_levels, codec.bits};
    case CodecKind::terngrad:
    case CodecKind::sign:
    case CodecKind::one_bit: return {Quantizer::random_levels, kSumBits};
    default: return {Quantizer::powers, 8};
  }
}

size_t coded_bytes(Coding coding, size_t n) {
  switch (coding.quantizer) {
    case Quantizer::powers: return 1 + n;
    case Quantizer::sign:
    case Quantizer::two_means: return 2 * sizeof(float) + (n + 7) / 8;
    default: return sizeof(float) + (n * coding.bits + 7) / 8;
  }
}

bool is_coded(Coding coding, const uint8_t* bytes) {
  if (coding.quantizer == Quantizer::powers) return bytes[0] > 0 && bytes[0] < 255;
  float values[2] = {};
  const bool two = coding.quantizer == Quantizer::sign || coding.quantizer == Quantizer::two_means;
  std::memcpy(values, bytes, two ? sizeof values : sizeof values[0]);
  return std::isfinite(values[0]) && std::isfinite(values[1]);
}

uint64_t block_key(uint32_t seed, uint32_t who, uint64_t block) {
  return mix(mix(uint64_t{seed} << 32 | who) + block);
}

size_t lossless_bytes(const uint8_t* code, size_t there, size_t n, size_t element) {
  if (there < kLosslessHeader || n > kLosslessMost || n * element < kLosslessLeast) return 0;
  const size_t bits = code[1], far = code[2] | size_t{code[3]} << 8;
  const size_t bytes = kLosslessHeader + n * (element - 1) + (n * bits + 7) / 8 + far;
  return bits < 1 || bits > 7 || bytes > n * element * kLosslessSixteenths / 16 ? 0 : bytes;
}

const CodecOps& codec_ops() {
  static const CodecOps& best = cpu_has_avx512() ? *codec_ops_named("avx512")
                                : cpu_has_avx2() ? *codec_ops_named("avx2")
                                                 : portable_codec_ops;
  return best;
}

const CodecOps* codec_ops_named(const std::string& implementation) {
#if defined(__x86_64__)
  if (implementation == "avx512" && cpu_has_avx512()) return &avx512_codec_ops;
  if (implementation == "avx2" && cpu_has_avx2()) return &avx2_codec_ops;
#endif
  return implementation == "portable" ? &portable_codec_ops : nullptr;
}

}  // namespace omnihvd
