/* Small sums between large ones, of halves of the communicator and of all; each value tells rank,
 * index and round. Argument "die": the last rank kills itself while the others wait in a small sum;
 * "differ": it sums other elements. Exit status 0: all sums were right, and every survivor got the
 * failure. */
#include <signal.h>
#include <unistd.h>

#include "check_sum.h"

static void check_round(MPI_Comm comm, int round) {
  static const int counts[] = {1, 60, 5000, 32768, 40000};
  int rank, size;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const int n = counts[round % 5];
  double* const x = malloc(sizeof *x * (size_t)n);
  for (int i = 0; i < n; ++i) x[i] = (double)i * size + rank + round;
  MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_DOUBLE, MPI_SUM, comm);
  for (int i = 0; i < n; ++i) {
    const double expected = ((double)i * size + round) * size + (double)size * (size - 1) / 2;
    if (x[i] != expected) fail("small sum", "double", i, x[i], expected);
  }
  free(x);
}

int main(int argc, char** argv) {
  int rank, size;
  MPI_Comm half;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  for (int round = 0; round < 200; ++round) {
    check_round(MPI_COMM_WORLD, round);
    check_round(half, round + 1);
  }
  MPI_Comm_free(&half);
  if (argc > 1) {
    int n = 100;
    double x[101] = {0};
    const int odd = rank == size - 1;
    if (odd && strcmp(argv[1], "die") == 0) {
      usleep(200000);
      raise(SIGKILL);
    }
    if (odd) n = 101;
    expect_failure(x, n, MPI_DOUBLE);
  }
  MPI_Finalize();
  return 0;
}
