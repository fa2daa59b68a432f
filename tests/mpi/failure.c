/* A sum that cannot be: its failure must come back where the communicator's error handler says so.
 * Argument "die": the last rank kills itself before its second sum; "memory": no rank has memory
 * for 2 million bits; "memory enough": none has memory for half of the elements. Exit status 0:
 * every surviving rank got the failure, or the sum. */
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check_sum.h"

static void get_no_more_memory_than(long more) {
  long pages = 0;
  FILE* const file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%ld", &pages) != 1) exit(1);
  fclose(file);
  const rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)more;
  const struct rlimit limit = {bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) exit(1);
}

int main(int argc, char** argv) {
  const Element element = {"float", 4, 'f', MPI_FLOAT, MPI_SUM};
  enum { few = 100000, many = 16000000 };
  static float buffer[many];
  int rank, size, n = few;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc > 1 && strcmp(argv[1], "die") == 0) {
    check_sum(&element, MPI_COMM_WORLD, n, 50, 0);
    if (rank == size - 1) raise(SIGKILL);
  }
  if (argc > 1 && strcmp(argv[1], "memory") == 0) {
    check_sum(&element, MPI_COMM_WORLD, n, 50, 0);
    n = many;
    for (int i = 0; i < n; ++i) buffer[i] = (float)(i / 4096 % 2);
    get_no_more_memory_than(argc > 2 ? 8 << 20 : 64 << 10);
    if (argc > 2) { /* it is enough */
      MPI_Allreduce(MPI_IN_PLACE, buffer, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      for (int i = 0; i < n; ++i)
        if (buffer[i] != (float)(size * (i / 4096 % 2)))
          fail("a sum", element.name, i, buffer[i], size * (i / 4096 % 2));
      MPI_Finalize();
      return 0;
    }
  }
  expect_failure(buffer, n, MPI_FLOAT);
}
