// The functions of one module. Compiled with, for example, for float16 or bfloat16
//   -DOMNIHVD_WIDTH=2 -DOMNIHVD_FLOAT=1 -DOMNIHVD_BLOCK=256
// where only float's signs do not count in the test for zero.
#include "codec.cuh"
#include "compact.cuh"
#include "scatter.cuh"
#include "union.cuh"

using namespace omnihvd::kernels;

extern "C" __global__ void __launch_bounds__(kCompactThreads)
    compact(uint64_t address, uint64_t elements, const Segment* segments, uint32_t n_segments,
            uint32_t flags, Totals* totals, uint32_t* bitmap, Record* records, uint4* data) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, segments, n_segments);
  compact_tiles<OMNIHVD_WIDTH, OMNIHVD_FLOAT, OMNIHVD_BLOCK>(tensor, flags, totals, bitmap, records,
                                                             data);
}

// Two CTAs on a multiprocessor suffice. Without this bound ptxas spills registers to fit more of
// them.
extern "C" __global__ void __launch_bounds__(kScatterThreads, 2)
    scatter(uint64_t address, uint64_t elements, const Segment* segments, uint32_t n_segments,
            const Record* records, const uint64_t* count, const uint8_t* data) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, segments, n_segments);
  scatter_blocks<OMNIHVD_WIDTH, OMNIHVD_BLOCK>(tensor, records, *count, data);
}

extern "C" __global__ void __launch_bounds__(kWordThreads)
    mark(uint64_t address, uint64_t elements, uint32_t flags, uint32_t trailer, uint8_t* marks) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, nullptr, 0);
  mark_blocks<OMNIHVD_WIDTH, OMNIHVD_FLOAT, OMNIHVD_BLOCK>(tensor, flags, trailer, marks);
}

extern "C" __global__ void __launch_bounds__(kUniteThreads)
    unite(const uint4* own, const uint4* all, uint64_t words, uint64_t words_per_chunk,
          uint32_t* united, uint32_t* prefix, ChunkCounts* counts, uint32_t* arrived,
          uint64_t* starts, Seen* seen, uint64_t number) {
  const uint64_t chunks = (words + words_per_chunk - 1) / words_per_chunk;
#pragma unroll 1
  for (uint64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const uint64_t begin = chunk * words_per_chunk, end = begin + words_per_chunk;
    unite_chunk(own, all, begin, end < words ? end : words, united, prefix, counts + chunk);
  }
  if (!is_last_cta(arrived)) return;
  total_chunks(counts, chunks, starts, seen);
  if (threadIdx.x != 0) return;
  seen->trailer = *reinterpret_cast<const uint32_t*>(all + 2 * words);
  __threadfence_system();
  *const_cast<volatile uint64_t*>(&seen->number) = number;
}

extern "C" __global__ void __launch_bounds__(kWordThreads)
    gather(uint64_t address, uint64_t elements, Union u, uint4* buffer) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, nullptr, 0);
  move_blocks<OMNIHVD_WIDTH, OMNIHVD_BLOCK, false>(tensor, u, buffer, false);
}

extern "C" __global__ void __launch_bounds__(kWordThreads)
    spread(uint64_t address, uint64_t elements, Union u, uint4* buffer, uint32_t fill) {
  const Tensor<OMNIHVD_WIDTH> tensor(address, elements, nullptr, 0);
  move_blocks<OMNIHVD_WIDTH, OMNIHVD_BLOCK, true>(tensor, u, buffer, fill != 0);
}

// From the input of a sum to its output: the blocks of the union that did not fit the buffer.
extern "C" __global__ void __launch_bounds__(kWordThreads)
    rest(uint64_t in, uint64_t out, uint64_t elements, Union u, Rest* rest, uint64_t data,
         uint32_t dtype, double factor, uint32_t format) {
  const Tensor<OMNIHVD_WIDTH> from(in, elements, nullptr, 0), to(out, elements, nullptr, 0);
  sum_rest<OMNIHVD_WIDTH, OMNIHVD_FLOAT, OMNIHVD_BLOCK>(from, to, u, rest, data, dtype, factor,
                                                        format);
}

#if OMNIHVD_FLOAT && OMNIHVD_WIDTH == 4
extern "C" __global__ void __launch_bounds__(kCodeThreads, 4)  // as above
    encode(uint64_t address, uint64_t elements, uint64_t rest, uint32_t quantizer, uint32_t bits,
           uint32_t seed, uint32_t who, uint64_t first_block, uint32_t parcel_blocks,
           uint8_t* parcels) {
  const Tensor<4> tensor(address, elements, nullptr, 0);
  const Tensor<4> kept(rest, rest ? elements : 0, nullptr, 0);
  encode_blocks<OMNIHVD_BLOCK>(tensor, kept, Coding{quantizer, bits}, seed, who, first_block,
                               parcel_blocks, parcels);
}

extern "C" __global__ void __launch_bounds__(kCodeThreads, 4)
    decode(uint64_t address, uint64_t elements, uint32_t quantizer, uint32_t bits, uint32_t seed,
           uint32_t count, uint32_t parcel_blocks, const uint8_t* parcels) {
  const Tensor<4> tensor(address, elements, nullptr, 0);
  decode_blocks<OMNIHVD_BLOCK>(tensor, Coding{quantizer, bits}, seed, count, parcel_blocks,
                               parcels);
}
#endif
