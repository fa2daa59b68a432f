/* MPI_Reduce_scatter and MPI_Reduce_scatter_block, in place and not, between allreduces. */
#include "check_sum.h"

enum { guard = 64 };
static int rank, size;

/* by_block: MPI_Reduce_scatter_block, for which counts are alike. */
static void check_scatter(const Element* e, const int* counts, int kept, int in_place,
                          int by_block) {
  long count = 0, begin = 0;
  for (int r = 0; r < size; ++r) {
    if (r == rank) begin = count;
    count += counts[r];
  }
  const size_t bytes = (size_t)(count * e->bytes), mine = (size_t)(counts[rank] * e->bytes);
  char* const in = malloc(bytes + guard);
  char* const out = in_place ? in : malloc(mine + guard);
  memset(in, 0x5a, bytes + guard);
  memset(out, 0x5a, (in_place ? bytes : mine) + guard);
  for (long i = 0; i < count; ++i) store(e, in, i, value(rank, i, kept));
  const void* const given = in_place ? MPI_IN_PLACE : in;
  if (by_block)
    MPI_Reduce_scatter_block(given, out, counts[0], e->type, e->op, MPI_COMM_WORLD);
  else
    MPI_Reduce_scatter(given, out, counts, e->type, e->op, MPI_COMM_WORLD);
  for (long i = 0; i < counts[rank]; ++i) {
    const double expected = (double)expected_sum(size, begin + i, kept);
    if (load(e, out, i) != expected) fail("share", e->name, i, load(e, out, i), expected);
  }
  for (long i = 0; !in_place && i < count; ++i)
    if (load(e, in, i) != value(rank, i, kept))
      fail("input", e->name, i, load(e, in, i), value(rank, i, kept));
  for (int i = 0; i < guard; ++i)
    if ((in_place ? in + bytes : out + mine)[i] != 0x5a) fail("guard", e->name, i, 0, 0x5a);
  free(in);
  if (!in_place) free(out);
}

static void check_max(void) {
  int* const counts = malloc((size_t)size * sizeof *counts);
  float in[4000], out[1000];
  for (int r = 0; r < size; ++r) counts[r] = 1000 / size;
  for (int i = 0; i < 1000; ++i) in[i] = (float)(i + rank);
  MPI_Reduce_scatter(in, out, counts, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < counts[rank]; ++i) {
    const float expected = (float)(rank * counts[0] + i + size - 1);
    if (out[i] != expected) fail("max", "float", i, out[i], expected);
  }
  free(counts);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Element half = make_half(0, float16_sum, 1);
  const Element elements[] = {
      {"float", 4, 'f', MPI_FLOAT, MPI_SUM},
      {"double", 8, 'f', MPI_DOUBLE, MPI_SUM},
      {"int8_t", 1, 'i', MPI_INT8_T, MPI_SUM},
      {"int64_t", 8, 'i', MPI_INT64_T, MPI_SUM},
      half,
  };
  /* Alike, around blocks; growing; for one rank alone. */
  const int alike[] = {1, 255, 256, 257, 40001};
  int* const counts = malloc((size_t)size * sizeof *counts);
  for (size_t t = 0; t < sizeof elements / sizeof *elements; ++t)
    for (int kept = 0; kept <= 100; kept += 50)
      for (int in_place = 0; in_place < 2; ++in_place) {
        for (size_t c = 0; c < sizeof alike / sizeof *alike; ++c) {
          for (int r = 0; r < size; ++r) counts[r] = alike[c];
          check_scatter(&elements[t], counts, kept, in_place, 1);
          check_scatter(&elements[t], counts, kept, in_place, 0);
        }
        for (int r = 0; r < size; ++r) counts[r] = 300 * r * r;
        counts[0] += 1;
        check_scatter(&elements[t], counts, kept, in_place, 0);
        check_sum(&elements[t], MPI_COMM_WORLD, 1001, kept, in_place);
        for (int r = 0; r < size; ++r) counts[r] = r == size / 2 ? 7001 : 0;
        check_scatter(&elements[t], counts, kept, in_place, 0);
      }
  check_max();
  for (int r = 0; r < size; ++r) counts[r] = 0;
  check_scatter(&elements[0], counts, 100, 0, 0);
  free(counts);
  free_half(&half);
  MPI_Finalize();
  return 0;
}
