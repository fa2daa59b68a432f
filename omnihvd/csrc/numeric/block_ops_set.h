// The implementations behind block_ops.h: one set of tables per instruction set.
#pragma once

#include "numeric/block_ops.h"

namespace omnihvd {

struct BlockOpsSet {
  BlockOps of[kDTypes];
  size_t (*packed_count)(const uint8_t* packed, size_t n);
};

extern const BlockOpsSet portable_block_ops;
#if defined(__x86_64__)
extern const BlockOpsSet avx2_block_ops;  // where cpu_has_avx2()
#endif

}  // namespace omnihvd
