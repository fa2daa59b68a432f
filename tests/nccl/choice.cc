// The choice between the ways of sums on GPUs, for test_gpu_choice.py.
#include "shims/nccl/gpu_choice.h"

using namespace omnihvd;

extern "C" {

void estimate_ways(uint64_t bytes, double united, double own, int ranks, double seconds_per_byte,
                   double* seconds) {
  const WaySeconds s = estimate({bytes, united, own}, {ranks, true, seconds_per_byte});
  seconds[0] = s.unite, seconds[1] = s.stream, seconds[2] = s.original;
}

int choose_way(int setting, uint64_t bytes, double united, double own, int ranks,
               bool one_gpu_a_host, double seconds_per_byte) {
  return int(choose(Way(setting), {bytes, united, own}, {ranks, one_gpu_a_host, seconds_per_byte}));
}

void* new_choices() { return new GpuChoices; }
int next_way(void* choices, uint64_t count) {
  return int(static_cast<GpuChoices*>(choices)->next(count, DType::f32));
}
void learn_way(void* choices, int way) { static_cast<GpuChoices*>(choices)->learn(Way(way)); }
}
