// NVTX ranges (NVIDIA's annotations) around the shim's work on the caller's thread; Nsight shows
// them in its timeline. Without a profiler nothing is loaded, and nothing is done.
#pragma once

#include <cstdint>

namespace omnihvd {

// A range of this thread, from here to the end of the scope: "omnihvd union, 8388608 bytes".
class NvtxRange {
 public:
  NvtxRange(const char* way, uint64_t bytes);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace omnihvd
