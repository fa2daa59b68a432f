/* Communicators that come and go, and are used in turns. */
#include "check_sum.h"

int main(int argc, char** argv) {
  const Element element = {"float", 4, 'f', MPI_FLOAT, MPI_SUM};
  enum { n = 5000 };
  int rank;
  MPI_Comm reversed, halves, copy;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int round = 0; round < 5; ++round) {
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &halves);
    check_sum(&element, MPI_COMM_WORLD, n, 50, 0);
    check_sum(&element, reversed, n, 50, 1);
    check_sum(&element, halves, n, 50, 0);
    MPI_Comm_dup(reversed, &copy); /* does not share the group of its original */
    check_sum(&element, copy, n, 50, 0);
    MPI_Comm_free(&reversed);
    check_sum(&element, copy, n, 50, 1);
    check_sum(&element, halves, n, 50, 0);
    MPI_Comm_free(&copy);
    if (round % 2) MPI_Comm_free(&halves); /* else left for MPI_Finalize */
  }
  MPI_Finalize();
  return 0;
}
