/* Every element type, in place and not, over sizes and densities. */
#include "check_sum.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Element half[2];
  half[0] = make_half(0, float16_sum, 1);
  half[1] = make_half(1, bfloat16_sum, 1);
  const Element elements[] = {
      {"float", 4, 'f', MPI_FLOAT, MPI_SUM},
      {"double", 8, 'f', MPI_DOUBLE, MPI_SUM},
      {"int8_t", 1, 'i', MPI_INT8_T, MPI_SUM},
      {"signed char", 1, 'i', MPI_SIGNED_CHAR, MPI_SUM},
      {"uint8_t", 1, 'u', MPI_UINT8_T, MPI_SUM},
      {"unsigned char", 1, 'u', MPI_UNSIGNED_CHAR, MPI_SUM},
      {"int", sizeof(int), 'i', MPI_INT, MPI_SUM},
      {"unsigned", sizeof(int), 'u', MPI_UNSIGNED, MPI_SUM},
      {"int32_t", 4, 'i', MPI_INT32_T, MPI_SUM},
      {"uint32_t", 4, 'u', MPI_UINT32_T, MPI_SUM},
      {"long", sizeof(long), 'i', MPI_LONG, MPI_SUM},
      {"unsigned long", sizeof(long), 'u', MPI_UNSIGNED_LONG, MPI_SUM},
      {"long long", sizeof(long long), 'i', MPI_LONG_LONG, MPI_SUM},
      {"unsigned long long", sizeof(long long), 'u', MPI_UNSIGNED_LONG_LONG, MPI_SUM},
      {"int64_t", 8, 'i', MPI_INT64_T, MPI_SUM},
      {"uint64_t", 8, 'u', MPI_UINT64_T, MPI_SUM},
      half[0],
      {"float16 in shorts", 2, 'h', MPI_UINT16_T, half[0].op},
      half[1],
  };
  /* Around blocks of 256, and one of many slots. */
  const long counts[] = {1, 2, 255, 256, 257, 768, 5000, 100003};
  for (size_t t = 0; t < sizeof elements / sizeof *elements; ++t)
    for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c)
      for (int in_place = 0; in_place < 2; ++in_place)
        for (int kept = 0; kept <= 100; kept += 50)
          check_sum(&elements[t], MPI_COMM_WORLD, counts[c], kept, in_place);
  free_half(&half[0]);
  free_half(&half[1]);
  MPI_Finalize();
  return 0;
}
