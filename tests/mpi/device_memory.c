/* Sums in host memory and in what the driver, argv[1], calls device memory: argv[2] has a letter
 * for each rank and sum, h or d. argv[3]: they are reduce-scatters. The driver is loaded after the
 * first sums. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check_sum.h"

enum { n = 1000 };

static int looked_for; /* how often the library has looked for a driver */

void* dlopen(const char* name, int flags) {
  looked_for += name != NULL && strcmp(name, "libcuda.so.1") == 0;
  return ((void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen"))(name, flags);
}

/* To look for a driver takes longer than to sum: only after a library was loaded may a sum do so.
 */
static void look_once(void) {
  for (int i = 0; i < 10; ++i) {
    float one = 1;
    MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
    if (i == 0) looked_for = 0;
  }
  if (looked_for != 0) fail("searches", "driver", 0, looked_for, 0);
}

/* Returns how many elements of the sum this rank gets, and where they begin in *first. */
static int sum(int scatters, const void* in, float* out, int rank, int size, int* first) {
  *first = 0;
  if (!scatters) {
    MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return n;
  }
  *first = rank * (n / size);
  MPI_Reduce_scatter_block(in, out, n / size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return n / size;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  static float host[n], out[n];
  look_once();
  void* const driver = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (driver == NULL) return 1;
  void* (*device_malloc)(size_t) = (void* (*)(size_t))dlsym(driver, "device_malloc");
  float* const device = device_malloc(sizeof host);
  if (strcmp(argv[2], "fails") == 0) { /* the copy of rank 1 alone; then all sum in host memory */
    setenv("COPY_FAILS", "1", 1);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 3; ++i) { /* a good one first, which connects the ranks */
      float* const in = rank == 1 && i == 1 ? device : host;
      for (int j = 0; j < n; ++j) in[j] = (float)(i + 1);
      const int code = MPI_Allreduce(MPI_IN_PLACE, in, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if ((code == MPI_SUCCESS) != (i == 0)) fail("code", "float", i, code, i != 0);
    }
    printf("rank %d got both failures\n", rank);
    fflush(stdout);
    sleep(2);
    _exit(0); /* MPI_Finalize would wait for those who are not well */
  }
  const int sums = (int)strlen(argv[2]) / size;
  for (int i = 0; i < 2 * sums; ++i) { /* each not in place, and in place */
    float* const in = argv[2][rank * sums + i / 2] == 'd' ? device : host;
    for (int j = 0; j < n; ++j) in[j] = (float)(j + rank);
    float* const to = i % 2 ? in : out;
    int first;
    const int mine = sum(argc > 3, i % 2 ? MPI_IN_PLACE : in, to, rank, size, &first);
    for (int j = 0; j < mine; ++j) {
      const int expected = (first + j) * size + size * (size - 1) / 2;
      if (to[j] != (float)expected) fail("sum", "float", j, to[j], expected);
    }
  }
  MPI_Finalize();
  return 0;
}
