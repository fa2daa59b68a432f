/* Sums in host memory and in what the driver, argv[1], calls device memory. */
#include <dlfcn.h>

#include "check_sum.h"

enum { n = 1000 };

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  static float host[n];
  float* device = host;
  for (int round = 0; round < 4; ++round) { /* host; host with a driver; device, and in place */
    if (round == 1) {
      void* const driver = dlopen(argv[1], RTLD_NOW);
      void* (*device_malloc)(size_t) = (void* (*)(size_t))dlsym(driver, "device_malloc");
      device = device_malloc(sizeof host);
    }
    float* const in = round < 2 ? host : device;
    static float out[n];
    for (int i = 0; i < n; ++i) in[i] = (float)(i + rank);
    MPI_Allreduce(round == 3 ? MPI_IN_PLACE : in, round == 3 ? in : out, n, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    const float* const sum = round == 3 ? in : out;
    for (int i = 0; i < n; ++i)
      if (sum[i] != i * size + size * (size - 1) / 2)
        fail("sum", "float", i, sum[i], i * size + size * (size - 1) / 2);
  }
  MPI_Finalize();
  return 0;
}
