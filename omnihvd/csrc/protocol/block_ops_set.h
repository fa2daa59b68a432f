// The implementations behind block_ops.h: one set of tables per instruction set.
#pragma once

#include "protocol/block_ops.h"

namespace omnihvd {

struct BlockOpsSet {
  const char* name;
  BlockOps of[kDTypes];
  size_t (*packed_count)(const uint8_t* packed, size_t n);
};

extern const BlockOpsSet portable_block_ops;
#if defined(__x86_64__)
extern const BlockOpsSet avx2_block_ops;    // AVX2, F16C, POPCNT
extern const BlockOpsSet avx512_block_ops;  // AVX-512 F, BW, DQ, VL, VBMI2
#endif

}  // namespace omnihvd
