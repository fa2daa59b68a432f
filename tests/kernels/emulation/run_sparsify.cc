// The kernels of sparsify.cu, run by cuda_emulation.h. Returns null, or what went wrong.
#include "emulate.h"
//
#include "sparsify.cu"

extern "C" {

const char* run_accumulate(uint64_t gradient, uint64_t elements, uint32_t format, uint64_t rest,
                           uint64_t velocity, float momentum, float* norms, uint64_t grid,
                           unsigned seed) {
  return emulate(grid, kCodeThreads, seed,
                 [&] { accumulate(gradient, elements, format, rest, velocity, momentum, norms); });
}

const char* run_choose(uint64_t norms, uint64_t blocks, uint32_t count, uint8_t* keep,
                       uint64_t grid, unsigned seed) {
  return emulate(grid, kChooseThreads, seed, [&] { choose(norms, blocks, count, keep); });
}

const char* run_split(uint64_t gradient, uint64_t elements, uint32_t format, uint64_t rest,
                      uint64_t velocity, float scale, const float* norms, float least,
                      const uint8_t* keep, uint64_t* kept, uint64_t grid, unsigned seed) {
  return emulate(grid, kCodeThreads, seed, [&] {
    split(gradient, elements, format, rest, velocity, scale, norms, least, keep, kept);
  });
}

const char* run_above(uint64_t gradient, uint64_t elements, uint32_t format, uint64_t rest,
                      uint64_t velocity, float momentum, float limit, uint64_t* kept, uint64_t grid,
                      unsigned seed) {
  return emulate(grid, kCodeThreads, seed,
                 [&] { above(gradient, elements, format, rest, velocity, momentum, limit, kept); });
}

}  // extern "C"
