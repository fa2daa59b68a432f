// The functions of one module. Compiled with, for example, for float16 or bfloat16
//   -DOMNIHVD_WIDTH=2 -DOMNIHVD_FLOAT=1 -DOMNIHVD_BLOCK=256
// where only float's signs do not count in the test for zero.
#include "compact.cuh"
#include "scale.cuh"
#include "scatter.cuh"

using namespace omnihvd::kernels;

extern "C" __global__ void __launch_bounds__(kCompactThreads)
    compact(uint64_t address, uint64_t elements, const Segment* segments, uint32_t n_segments,
            uint32_t flags, Totals* totals, uint32_t* bitmap, Record* records, uint4* data) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, segments, n_segments);
  compact_tiles<OMNIHVD_WIDTH, OMNIHVD_FLOAT, OMNIHVD_BLOCK>(tensor, flags, totals, bitmap, records,
                                                             data);
}

// Two CTAs on a multiprocessor will do: ptxas, not told, spills registers to have more of them.
extern "C" __global__ void __launch_bounds__(kScatterThreads, 2)
    scatter(uint64_t address, uint64_t elements, const Segment* segments, uint32_t n_segments,
            const Record* records, const uint64_t* count, const uint8_t* data) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, segments, n_segments);
  const uint64_t n = *count;  // read once
  if (n == kNoResult)
    set_all_bits(tensor);
  else
    scatter_blocks<OMNIHVD_WIDTH, OMNIHVD_BLOCK>(tensor, records, n, data);
}

#if OMNIHVD_FLOAT
extern "C" __global__ void __launch_bounds__(kStrideThreads)
    scale(uint64_t in, uint64_t out, uint64_t elements, double factor, uint32_t format) {
  const Tensor<OMNIHVD_WIDTH> from(in, elements, nullptr, 0), to(out, elements, nullptr, 0);
  scale_elements<OMNIHVD_WIDTH>(from, to, factor, format);
}
#endif
