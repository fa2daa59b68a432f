/* The first sum on a communicator, where the ranks do not all do the same. Arguments: what the rank
 * numbered by the second one does.
 *
 *   nothing   else than the others: it has no shim, or another one
 *   dies      before its sum
 *   late      comes 5 s later than the others; all must be well
 *   stopped   the same, and the others are stopped for most of that time
 *   apart     has no shim, and the others have a communicator of their own; all must be well
 *   listens   all ranks have receives open meanwhile that take any message; all must be well
 *   fortran   the same, and MPI is initialized as a program in Fortran does
 *   differs   sums fewer elements; a third argument: all have a sum of so many before
 *
 * Where all must not be well, each rank with the shim says so, and that no later call works either.
 * Every rank watches its buffer: nobody may write into it, save that a sum that has begun leaves
 * anything. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "check_sum.h"

enum { n = 200000, few = 50000 };
static const Element element = {"float", 4, 'f', MPI_FLOAT, MPI_SUM};
static float buffer[n];
static int rank, size;

/* Soon, while this process does something else. */
static void stop_for(unsigned seconds) {
  const pid_t parent = getpid();
  if (fork() != 0) return;
  usleep(500000);
  kill(parent, SIGSTOP);
  sleep(seconds);
  kill(parent, SIGCONT);
  _exit(0);
}

static void watch(int signal) {
  (void)signal;
  for (int i = 0; i < n; ++i)
    if (buffer[i] != (float)(i % 100 + rank)) {
      static char text[] = "somebody wrote into the buffer of rank ?\n";
      text[sizeof text - 3] = (char)('0' + rank);
      if (write(2, text, sizeof text - 1) < 0) _exit(1);
      break;
    }
  alarm(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void open_receives(MPI_Comm comm) {
  int got = -1, next = (rank + 1) % size, previous = (rank + size - 1) % size;
  MPI_Request request;
  MPI_Status status;
  MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &request);
  check_sum(&element, comm, n, 50, 0);
  MPI_Send(&rank, 1, MPI_INT, next, 7, comm);
  MPI_Wait(&request, &status);
  if (got != previous || status.MPI_TAG != 7) fail("message", "int", 0, got, previous);
}

/* Stands in for the library of MPI in Fortran, which need not be installed. */
void pmpi_init_(int* code) { *code = PMPI_Init(NULL, NULL); }
void mpi_init_(int* code) __attribute__((weak)); /* the shim's */

int main(int argc, char** argv) {
  MPI_Comm copy;
  int code;
  const int fortran = argc > 1 && strcmp(argv[1], "fortran") == 0;
  if (fortran)
    mpi_init_(&code);
  else
    MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 3) return 1;
  const char* const what = argv[1];
  const int other = rank == atoi(argv[2]);
  const int stopped = strcmp(what, "stopped") == 0;
  if (stopped || strcmp(what, "late") == 0) {
    if (other)
      sleep(5);
    else if (stopped)
      stop_for(4);
    check_sum(&element, MPI_COMM_WORLD, n, 50, 0);
    MPI_Finalize();
    return 0;
  }
  if (strcmp(what, "apart") == 0) {
    MPI_Comm_split(MPI_COMM_WORLD, other, rank, &copy);
    check_sum(&element, copy, n, 50, 0);
    MPI_Finalize();
    return 0;
  }
  if (fortran || strcmp(what, "listens") == 0) {
    open_receives(MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    open_receives(copy);
    MPI_Finalize();
    return 0;
  }

  if (strcmp(what, "dies") == 0 && other) raise(SIGKILL);
  if (argc > 3) check_sum(&element, MPI_COMM_WORLD, atoi(argv[3]), 100, 0);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int i = 0; i < n; ++i) buffer[i] = (float)(i % 100 + rank);
  signal(SIGALRM, watch);
  alarm(1);
  const double begin = now();
  const int count = strcmp(what, "differs") == 0 && other ? few : n;
  if (MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS)
    fail("success", "a sum that cannot be", 0, 0, MPI_ERR_OTHER);
  const double seconds = now() - begin;
  watch(0);
  int one = 1; /* of another kind, and left to MPI at other times */
  if (MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD) == MPI_SUCCESS ||
      MPI_Allreduce(MPI_IN_PLACE, buffer, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS)
    fail("success", "after a failure", 0, 0, MPI_ERR_OTHER);
  if (now() - begin > seconds + 0.5) fail("seconds", "later calls", 0, now() - begin, seconds);
  printf("rank %d got the failure after %.1f s\n", rank, seconds);
  fflush(stdout);
  sleep(2); /* mpirun ends the others when one leaves: let them have their say */
  _exit(0); /* MPI_Finalize would wait for those who are not well */
}
