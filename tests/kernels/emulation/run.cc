// The kernels of one module (see kernels.cu), run by cuda_emulation.h. Returns null, or what went
// wrong.
#include "emulate.h"
//
#include "kernels.cu"
#include "numeric/codec.h"
#include "protocol/tensor.h"

extern "C" {

const char* run_compact(uint64_t address, uint64_t elements, const Segment* segments,
                        uint32_t n_segments, uint32_t flags, Totals* totals, uint32_t* bitmap,
                        Record* records, uint4* data, uint64_t grid, unsigned seed) {
  return emulate(grid, kCompactThreads, seed, [&] {
    compact(address, elements, segments, n_segments, flags, totals, bitmap, records, data);
  });
}

const char* run_scatter(uint64_t address, uint64_t elements, const Segment* segments,
                        uint32_t n_segments, const Record* records, const uint64_t* count,
                        const uint8_t* data, uint64_t grid, unsigned seed) {
  return emulate(grid, kScatterThreads, seed,
                 [&] { scatter(address, elements, segments, n_segments, records, count, data); });
}

const char* run_mark(uint64_t address, uint64_t elements, uint32_t flags, uint32_t trailer,
                     uint8_t* marks, uint64_t grid, unsigned seed) {
  return emulate(grid, kWordThreads, seed, [&] { mark(address, elements, flags, trailer, marks); });
}

const char* run_unite(const uint4* own, const uint4* all, uint64_t words, uint64_t words_per_chunk,
                      uint32_t* united, uint32_t* prefix, ChunkCounts* counts, uint32_t* arrived,
                      uint64_t* starts, Seen* seen, uint64_t number, uint64_t grid, unsigned seed) {
  return emulate(grid, kUniteThreads, seed, [&] {
    unite(own, all, words, words_per_chunk, united, prefix, counts, arrived, starts, seen, number);
  });
}

const char* run_gather(uint64_t address, uint64_t elements, const Union* u, uint4* buffer,
                       uint64_t grid, unsigned seed) {
  return emulate(grid, kWordThreads, seed, [&] { gather(address, elements, *u, buffer); });
}

const char* run_spread(uint64_t address, uint64_t elements, const Union* u, uint4* buffer,
                       uint32_t fill, uint64_t grid, unsigned seed) {
  return emulate(grid, kWordThreads, seed, [&] { spread(address, elements, *u, buffer, fill); });
}

const char* run_rest(uint64_t in, uint64_t out, uint64_t elements, const Union* u, Rest* words,
                     uint64_t data, uint32_t dtype, double factor, uint32_t format, uint64_t grid,
                     unsigned seed) {
  return emulate(grid, kWordThreads, seed,
                 [&] { rest(in, out, elements, *u, words, data, dtype, factor, format); });
}

#if OMNIHVD_FLOAT
// The function by which rest scales its windows, for whole tensors.
const char* run_scale(uint64_t in, uint64_t out, uint64_t elements, double factor, uint32_t format,
                      uint64_t grid, unsigned seed) {
  return emulate(grid, kWordThreads, seed, [&] {
    const Tensor<OMNIHVD_WIDTH> from(in, elements, nullptr, 0), to(out, elements, nullptr, 0);
    scale_elements<OMNIHVD_WIDTH, kWordThreads>(from, to, factor, format);
  });
}
#endif

#if OMNIHVD_FLOAT && OMNIHVD_WIDTH == 4
static_assert(kPowers == Quantizer(omnihvd::Quantizer::powers) &&
                  kRandomLevels == Quantizer(omnihvd::Quantizer::random_levels) &&
                  kNearestLevel == Quantizer(omnihvd::Quantizer::nearest_level) &&
                  kTernary == Quantizer(omnihvd::Quantizer::ternary) &&
                  kSign == Quantizer(omnihvd::Quantizer::sign) &&
                  kTwoMeans == Quantizer(omnihvd::Quantizer::two_means),
              "the engine's rules");

const char* run_encode(uint64_t address, uint64_t elements, uint64_t rest, uint32_t quantizer,
                       uint32_t bits, uint32_t seed, uint32_t who, uint64_t first_block,
                       uint32_t parcel_blocks, uint8_t* parcels, uint64_t grid, unsigned order) {
  return emulate(grid, kCodeThreads, order, [&] {
    encode(address, elements, rest, quantizer, bits, seed, who, first_block, parcel_blocks,
           parcels);
  });
}

const char* run_decode(uint64_t address, uint64_t elements, uint32_t quantizer, uint32_t bits,
                       uint32_t seed, uint32_t count, uint32_t parcel_blocks,
                       const uint8_t* parcels, uint64_t grid, unsigned order) {
  return emulate(grid, kCodeThreads, order, [&] {
    decode(address, elements, quantizer, bits, seed, count, parcel_blocks, parcels);
  });
}
#endif

// The kernels and the engine must pack the same blocks; true where they agree.
bool same_packing(uint32_t n, uint32_t nonzero) {
  return worth_packing(n, nonzero, OMNIHVD_WIDTH) ==
         omnihvd::worth_packing(n, nonzero, OMNIHVD_WIDTH);
}

uint64_t grid_of_compact(uint64_t elements) { return compact_grid(elements, OMNIHVD_WIDTH); }
uint64_t grid_of_scatter(uint64_t most) { return scatter_grid(most, OMNIHVD_WIDTH, OMNIHVD_BLOCK); }

}  // extern "C"
