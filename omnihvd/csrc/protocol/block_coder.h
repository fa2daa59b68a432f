// In which form a block of one collective travels in one direction, and its coded form.
#pragma once

#include "protocol/block_ops.h"
#include "protocol/codec.h"

namespace omnihvd {

class BlockCoder {
 public:
  // who: whose random numbers, as in block_key(). Without a codec nothing is coded.
  BlockCoder(const Codec& codec, Coding coding, uint32_t who)
      : codec_(codec), coding_(coding), who_(who), ops_(codec_ops()) {}

  // A block of n elements, `nonzero` of them not zero: is it to be packed?
  bool packs(size_t n, size_t nonzero, size_t element) const {
    return worth_packing(n, nonzero, element) &&
           (!codec_ || bitmap_bytes(n) + nonzero * element <= coded_bytes(coding_, n));
  }

  // Returns the bytes written to `out`, fewer than the block has; 0: it is to travel as it is.
  size_t encode(uint64_t block, const void* data, size_t n, uint8_t* out) const {
    if (!codec_) return 0;
    const size_t bytes = coded_bytes(coding_, n);
    if (bytes >= n * sizeof(float)) return 0;
    const uint64_t key = block_key(codec_.seed, who_, block);
    return ops_.encode(coding_, key, data, n, out) ? bytes : 0;
  }

  void decode(const uint8_t* coded, size_t n, void* block) const {
    ops_.decode(coding_, coded, n, block);
  }

 private:
  const Codec codec_;
  const Coding coding_;
  const uint32_t who_;
  const CodecOps& ops_;
};

}  // namespace omnihvd
