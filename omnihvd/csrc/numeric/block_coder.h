// Chooses the form in which a block of one collective travels in one direction, and encodes it.
#pragma once

#include "base/error.h"
#include "numeric/block_ops.h"
#include "numeric/codec.h"

namespace omnihvd {

class BlockCoder {
 public:
  // who: the key of the random numbers, as in block_key(). Without a codec nothing is coded.
  BlockCoder(const Codec& codec, Coding coding, uint32_t who, DType dtype)
      : codec_(codec), coding_(coding), who_(who), element_(size_of(dtype)), ops_(codec_ops()) {}

  // Is a block of n elements, `nonzero` of them not zero, to be packed?
  bool packs(size_t n, size_t nonzero) const {
    return worth_packing(n, nonzero, element_) &&
           (!codec_.lossy() || bitmap_bytes(n) + nonzero * element_ <= coded_bytes(coding_, n));
  }

  // The key of the block's random numbers.
  uint64_t key(uint64_t block) const { return block_key(codec_.seed, who_, block); }

  // Returns the bytes written to `out`, fewer than the block has; 0: send the block as it is.
  size_t encode(uint64_t block, const void* data, size_t n, uint8_t* out) const {
    if (!codec_) return 0;
    if (!codec_.lossy()) return ops_.encode_lossless(element_, data, n, out);
    const size_t bytes = coded_bytes(coding_, n);
    if (bytes >= n * sizeof(float)) return 0;
    return ops_.encode(coding_, key(block), data, n, out) ? bytes : 0;
  }

  // Throws Error if no encoder writes this.
  void decode(const uint8_t* coded, size_t n, void* block) const {
    if (codec_.lossy())
      ops_.decode(coding_, coded, n, block);
    else if (!ops_.decode_lossless(element_, coded, n, block))
      throw Error("malformed message: a coded block that nothing writes");
  }

 private:
  const Codec codec_;
  const Coding coding_;
  const uint32_t who_;
  const size_t element_;
  const CodecOps& ops_;
};

}  // namespace omnihvd
