// The lossless codec (numeric/lossless.h): any bits survive, every implementation writes the same
// bytes, and all read any code alike.
#include "numeric/lossless.h"

#include <memory>

#include "input.h"
#include "numeric/codec.h"

using namespace omnihvd;
using fuzz::Bytes;

constexpr const char* kNames[] = {"portable", "avx2", "avx512"};

// Elements with high bytes near to each other, as gradients have them, or any.
static Bytes drawn_block(fuzz::Input& in, size_t n, size_t element) {
  const bool near = in.flag();
  const uint8_t largest = in.number<uint8_t>(), spread = in.number<uint8_t>();
  Bytes block = in.bytes(n * element);
  for (size_t i = 0; near && i < n; ++i) {
    uint8_t& high = block[i * element + element - 1];
    high = uint8_t((high & 0x80) | ((largest - high % (spread % 8 + 1)) & 0x7F));
  }
  return block;
}

FUZZ(in) {
  const size_t element = in.one_of<size_t>({2, 4, 8}), n = in.between(0, 600);
  const bool decodes = in.flag();
  Bytes code;
  if (decodes) {
    code = in.rest();
    const size_t size = lossless_bytes(code.data(), code.size(), n, element);
    if (size == 0 || size > code.size()) return;  // who reads it sees that it ends early
    MUST(size < n * element);
    code.resize(size);
    code.shrink_to_fit();
  }
  const Bytes block = decodes ? Bytes() : drawn_block(in, n, element);
  std::unique_ptr<Bytes> first;
  for (const char* const name : kNames) {
    const CodecOps* const ops = codec_ops_named(name);
    if (!ops) continue;
    if (!decodes) {
      code.assign(n * element, 0);
      code.resize(ops->encode_lossless(element, block.data(), n, code.data()));
      code.shrink_to_fit();
    }
    Bytes made = code;
    if (!code.empty()) {
      Bytes back(n * element);
      MUST(lossless_bytes(code.data(), code.size(), n, element) == code.size());
      const bool taken = ops->decode_lossless(element, code.data(), n, back.data());
      MUST(decodes || (taken && back == block));
      made = taken ? back : Bytes();
      if (!decodes) made = code;
    }
    if (!first) first = std::make_unique<Bytes>(made);
    MUST(*first == made);
  }
}
