/* Sums lists of blocks by omnihvd's C interface, over MPI:
 *
 *   LIB=$(python -c "import omnihvd, os; print(os.path.dirname(omnihvd.__file__))")/lib
 *   mpicc -I omnihvd/csrc/api examples/block_lists.c -L "$LIB" -lomnihvd -Wl,-rpath,"$LIB" -o sum
 *   mpirun -np 3 ./sum
 */
#include <mpi.h>
#include <stdio.h>

#include "omnihvd.h"

enum { LENGTH = 4, BLOCKS = 1000000 };

static int allgather(void* context, const void* mine, void* all, size_t size) {
  return MPI_Allgather(mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, *(MPI_Comm*)context);
}

static void check(int status) {
  if (status == 0) return;
  fprintf(stderr, "%s\n", omnihvd_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm world = MPI_COMM_WORLD;
  int rank, size;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  omnihvd_group* group;
  check(omnihvd_group_new(rank, size, allgather, &world, &group));

  /* Rank r has block r, and the last block: each of four elements. */
  float values[2][LENGTH];
  for (int i = 0; i < 2 * LENGTH; ++i) values[i / LENGTH][i % LENGTH] = (float)(rank + 1);
  const int64_t indices[2] = {rank, BLOCKS - 1};
  omnihvd_block_list sum;
  check(omnihvd_allreduce_blocks(group, values, indices, 2, LENGTH, BLOCKS, OMNIHVD_FLOAT32, NULL,
                                 &sum));
  if (rank == 0)
    for (uint64_t i = 0; i < sum.block_count; ++i)
      printf("block %ld: %g\n", (long)sum.indices[i], ((float*)sum.values)[i * LENGTH]);

  omnihvd_block_list_free(&sum);
  omnihvd_group_free(group);
  MPI_Finalize();
  return 0;
}
