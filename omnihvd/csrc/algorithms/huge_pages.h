// The kernel gives a process new memory page by page, on the first write: 100 MB take 24,415
// faults, or 48 with huge pages.
#pragma once

#include <sys/mman.h>

#include <cstdint>

namespace omnihvd {

// For memory that is about to be written completely, so that no additional memory is used. Pages
// that exist already stay as they are. NumPy does the same for arrays of this size.
inline void ask_for_huge_pages(void* data, uint64_t bytes) {
  constexpr uintptr_t huge = 2 << 20;
  if (bytes < 2 * huge) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + huge - 1) & ~(huge - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(huge - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // or it stays as it is
}

}  // namespace omnihvd
