// Selects the implementation for this CPU. Compiled for the baseline CPU: only this file may run
// before the selection.
#include "numeric/block_ops.h"

#include <cstring>

#include "numeric/block_ops_set.h"
#include "numeric/cpu.h"

namespace omnihvd {
namespace {

const BlockOpsSet& best() {
#if defined(__x86_64__)
  static const BlockOpsSet& set = cpu_has_avx2() ? avx2_block_ops : portable_block_ops;
  return set;
#else
  return portable_block_ops;
#endif
}

}  // namespace

const BlockOps& block_ops(DType dtype) { return best().of[static_cast<int>(dtype)]; }

size_t packed_count(const uint8_t* packed, size_t n) { return best().packed_count(packed, n); }

size_t pack_listed(const uint32_t* offsets, const uint8_t* elements, size_t count, size_t element,
                   size_t n, uint8_t* out) {
  const size_t bitmap = bitmap_bytes(n);
  std::memset(out, 0, bitmap);
  for (size_t i = 0; i < count; ++i)
    out[offsets[i] / 8] = uint8_t(out[offsets[i] / 8] | 1u << (offsets[i] % 8));
  std::memcpy(out + bitmap, elements, count * element);
  return bitmap + count * element;
}

}  // namespace omnihvd
