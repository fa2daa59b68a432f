// Picks the implementation for this CPU. Compiled for the baseline CPU: nothing but this file may
// run before the choice is made.
#include "protocol/block_ops.h"

#include <cstring>

#include "protocol/block_ops_set.h"
#include "protocol/cpu.h"

namespace omnihvd {
namespace {

struct Available {
  const BlockOpsSet* sets[3];  // best first
  int count = 0;

  Available() {
#if defined(__x86_64__)
    if (cpu_has_avx512()) sets[count++] = &avx512_block_ops;
    if (cpu_has_avx2()) sets[count++] = &avx2_block_ops;
#endif
    sets[count++] = &portable_block_ops;
  }
};

const Available& available() {
  static const Available result;
  return result;
}

const BlockOpsSet& best() { return *available().sets[0]; }

}  // namespace

const BlockOps& block_ops(DType dtype) { return best().of[static_cast<int>(dtype)]; }

const BlockOps* block_ops_named(DType dtype, const char* implementation) {
  for (int i = 0; i < available().count; ++i) {
    const BlockOpsSet& set = *available().sets[i];
    if (std::strcmp(set.name, implementation) == 0) return &set.of[static_cast<int>(dtype)];
  }
  return nullptr;
}

const char* block_ops_implementation() { return best().name; }

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
