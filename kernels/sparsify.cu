// A module of its own, which Python launches (sparsify.py), for gradients of float32, float16 or
// bfloat16. Compiled like kernels.cu.
//
//   accumulate  <<<any grid, kCodeThreads>>>
//               (gradient, elements, format, rest, velocity, momentum, norms)
//   above       <<<any grid, kCodeThreads>>>
//               (gradient, elements, format, rest, velocity, momentum, limit, kept)
//   choose      <<<1, kChooseThreads>>> (norms, blocks, count, keep)
//   split       <<<any grid, kCodeThreads>>>
//               (gradient, elements, format, rest, velocity, scale, norms, least, keep, kept)
//
// rest (the residual), velocity: float32, as long as the gradient; 0: none. keep: a byte for each
// block, or null. kept: null, or a counter to which the number of sent elements is added.
#include "choose.cuh"
#include "sparsify.cuh"

using namespace omnihvd::kernels;

// Two CTAs on a multiprocessor will do: see kernels.cu.
extern "C" __global__ void __launch_bounds__(kCodeThreads, 2)
    accumulate(uint64_t gradient, uint64_t elements, uint32_t format, uint64_t rest,
               uint64_t velocity, float momentum, float* norms) {
  const Floats<OMNIHVD_WIDTH> from(gradient, elements, format);
  accumulate_blocks<OMNIHVD_WIDTH, OMNIHVD_BLOCK>(from, Floats<4>(rest, elements),
                                                  Floats<4>(velocity, elements), momentum, norms);
}

extern "C" __global__ void __launch_bounds__(kChooseThreads)
    choose(uint64_t norms, uint64_t blocks, uint32_t count, uint8_t* keep) {
  choose_largest(Tensor<4>(norms, blocks, nullptr, 0), count, keep);
}

extern "C" __global__ void __launch_bounds__(kCodeThreads, 2)
    split(uint64_t gradient, uint64_t elements, uint32_t format, uint64_t rest, uint64_t velocity,
          float scale, const float* norms, float least, const uint8_t* keep, uint64_t* kept) {
  const Floats<OMNIHVD_WIDTH> from(gradient, elements, format);
  split_blocks<OMNIHVD_WIDTH, OMNIHVD_BLOCK>(from, Floats<4>(rest, elements),
                                             Floats<4>(velocity, elements), scale, norms, least,
                                             keep, kept);
}

extern "C" __global__ void __launch_bounds__(kCodeThreads, 2)
    above(uint64_t gradient, uint64_t elements, uint32_t format, uint64_t rest, uint64_t velocity,
          float momentum, float limit, uint64_t* kept) {
  const Floats<OMNIHVD_WIDTH> from(gradient, elements, format);
  send_above<OMNIHVD_WIDTH>(from, Floats<4>(rest, elements), Floats<4>(velocity, elements),
                            momentum, limit, kept);
}
