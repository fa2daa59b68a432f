/* A program that sums while MPI_Finalize deletes the attributes of MPI_COMM_SELF, last first: its
 * own is older than omnihvd's, which the first sum sets. */
#include "check_sum.h"

static const Element element = {"float", 4, 'f', MPI_FLOAT, MPI_SUM};
enum { n = 5000 };

static int sum_once_more(MPI_Comm comm, int key, void* attribute, void* state) {
  (void)comm, (void)key, (void)state;
  check_sum(&element, *(MPI_Comm*)attribute, n, 50, 0);
  check_sum(&element, MPI_COMM_SELF, n, 50, 0);
  fprintf(stderr, "summed at the end\n");
  return MPI_SUCCESS;
}

int main(int argc, char** argv) {
  static MPI_Comm all;
  int key;
  MPI_Init(&argc, &argv);
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &sum_once_more, &key, NULL);
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, &all);
  check_sum(&element, all, n, 50, 0);
  MPI_Finalize();
  return 0;
}
