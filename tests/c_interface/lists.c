/* On each rank: sums of lists by omnihvd.h, against closed forms, and its errors. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "omnihvd.h"

static int rank, size, gathers, broken;

#define MUST(condition)                                                                    \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "rank %d, line %d: not " #condition ", error: %s\n", rank, __LINE__, \
              omnihvd_error());                                                            \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                        \
    }                                                                                      \
  } while (0)

static int allgather(void* context, const void* mine, void* all, size_t bytes) {
  ++gathers;
  if (broken) return -1;
  return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm*)context);
}

static double value(int of, int64_t block, uint64_t element) {
  return (double)((block * 13 + (int64_t)element * 5 + of * 31) % 29 + 1);
}

/* Rank r has the blocks i with (7 i + 3 r) % 10 < 2; the last rank none. */
static int has(int of, int64_t block) { return of != size - 1 && (block * 7 + of * 3) % 10 < 2; }

static void put(void* at, uint64_t i, omnihvd_dtype dtype, double x) {
  if (dtype == OMNIHVD_FLOAT32) ((float*)at)[i] = (float)x;
  if (dtype == OMNIHVD_FLOAT64) ((double*)at)[i] = x;
  if (dtype == OMNIHVD_INT64) ((int64_t*)at)[i] = (int64_t)x;
  if (dtype == OMNIHVD_UINT8) ((uint8_t*)at)[i] = (uint8_t)x;
}

static double get(const void* at, uint64_t i, omnihvd_dtype dtype) {
  if (dtype == OMNIHVD_FLOAT32) return ((const float*)at)[i];
  if (dtype == OMNIHVD_FLOAT64) return ((const double*)at)[i];
  if (dtype == OMNIHVD_INT64) return (double)((const int64_t*)at)[i];
  return ((const uint8_t*)at)[i];
}

/* mixed: descending numbers, and the first block twice. */
static void sum(omnihvd_group* group, uint64_t blocks, uint64_t length, omnihvd_dtype dtype,
                int mixed) {
  void* const values = malloc((blocks + 1) * length * 8);
  int64_t* const indices = malloc((blocks + 1) * sizeof *indices);
  uint64_t count = 0, united = 0;
  for (int64_t block = 0; block < (int64_t)blocks; ++block) {
    const int64_t number = mixed ? (int64_t)blocks - 1 - block : block;
    for (int times = has(rank, number) ? 1 + (mixed && number == 0) : 0; times > 0; --times) {
      for (uint64_t i = 0; i < length; ++i)
        put(values, count * length + i, dtype, value(rank, number, i));
      indices[count++] = number;
    }
  }
  omnihvd_block_list list;
  void* const out = malloc(blocks * length * 8);
  memset(out, 7, blocks * length * 8);
  MUST(omnihvd_allreduce_blocks(group, values, indices, count, length, blocks, dtype, NULL,
                                &list) == 0);
  MUST(omnihvd_allreduce_blocks(group, values, indices, count, length, blocks, dtype, out, NULL) ==
       0);
  for (int64_t block = 0; block < (int64_t)blocks; ++block) {
    int any = 0;
    for (int of = 0; of < size; ++of) any |= has(of, block);
    for (uint64_t i = 0; i < length; ++i) {
      double expected = 0;
      for (int of = 0; of < size; ++of)
        if (has(of, block)) expected += value(of, block, i) * (1 + (mixed && block == 0));
      MUST(get(out, (uint64_t)block * length + i, dtype) == expected);
      if (any) MUST(get(list.values, united * length + i, dtype) == expected);
    }
    if (any) MUST(list.indices[united++] == block);
  }
  MUST(list.block_count == united);
  omnihvd_block_list_free(&list);
  MUST(list.block_count == 0 && !list.indices && !list.values);
  free(out);
  free(indices);
  free(values);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm world;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  omnihvd_group* group = NULL;
  MUST(omnihvd_group_new(rank, size, allgather, &world, &group) == 0);
  const omnihvd_dtype dtypes[] = {OMNIHVD_FLOAT32, OMNIHVD_FLOAT64, OMNIHVD_INT64, OMNIHVD_UINT8};
  for (int i = 0; i < 4; ++i)
    for (int mixed = 0; mixed < 2; ++mixed) {
      sum(group, 1, 1, dtypes[i], mixed);
      sum(group, 3000, 5, dtypes[i], mixed);
      sum(group, 500, 256, dtypes[i], mixed);
    }
  const int needed = gathers;
  sum(group, 20, 3000, OMNIHVD_FLOAT32, 0);
  MUST(gathers == needed);

  /* A wrong call is refused here, and does not harm the group. */
  const float one[2] = {1, 1};
  const int64_t first = 0;
  omnihvd_block_list list;
  float out[64];
  MUST(omnihvd_allreduce_blocks(group, one, &first, 1, 2, 4, OMNIHVD_FLOAT32, NULL, NULL) == -1);
  MUST(omnihvd_allreduce_blocks(group, one, &first, 1, 2, 4, OMNIHVD_FLOAT32, out, &list) == -1);
  MUST(omnihvd_allreduce_blocks(group, NULL, &first, 1, 2, 4, OMNIHVD_FLOAT32, out, NULL) == -1);
  MUST(omnihvd_allreduce_blocks(group, one, &first, 1, 2, 4, (omnihvd_dtype)9, out, NULL) == -1);
  MUST(strstr(omnihvd_error(), "needs a group, a dtype, a list"));
  sum(group, 40, 2, OMNIHVD_FLOAT32, 0);

  /* The last rank's blocks have another length: all are told, and each later call fails. */
  if (size > 1) {
    const uint64_t length = rank == size - 1 ? 2 : 1;
    for (int times = 0; times < 2; ++times) {
      MUST(omnihvd_allreduce_blocks(group, one, &first, 1, length, 4 / length, OMNIHVD_FLOAT32,
                                    NULL, &list) == -1);
      MUST(strstr(omnihvd_error(), "disagree") && strstr(omnihvd_error(), "in blocks of"));
      MUST(list.block_count == 0 && !list.values);
    }
  }
  omnihvd_group_free(group);

  broken = 1;
  MUST(omnihvd_group_new(rank, size, allgather, &world, &group) == -1);
  MUST(strstr(omnihvd_error(), "the caller's allgather has failed"));
  MUST(omnihvd_group_new(size, size, allgather, &world, &group) == -1);
  MUST(strstr(omnihvd_error(), "a group needs a rank from 0 to its size - 1"));
  printf("all well\n");
  MPI_Finalize();
  return 0;
}
