/* What is to be left to MPI, each right all the same. Every call here has 1000 elements or fewer.
 */
#include "check_sum.h"

enum { n = 1000 };
static int rank, size;

static int sum_over_ranks(int i) { return i * size + size * (size - 1) / 2; } /* of i + rank */

static void max_of_floats(void) {
  float in[n], out[n];
  for (int i = 0; i < n; ++i) in[i] = (float)(i + rank);
  MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < n; ++i)
    if (out[i] != i + size - 1) fail("max", "float", i, out[i], i + size - 1);
}

static void bits_in_common(void) { /* no sum of anything: not worth a word in the summary */
  long long in = 12 + rank % 2, out = 0;
  MPI_Allreduce(&in, &out, 1, MPI_LONG_LONG, MPI_BAND, MPI_COMM_WORLD);
  if (out != 12) fail("band", "long long", 0, (double)out, 12);
}

HALF_OP(float16_max, 0, a > b ? a : b)

static void max_of_halves(void) { /* perhaps under the handles that meant a sum just before */
  Element sum = make_half(0, float16_sum, 1);
  check_sum(&sum, MPI_COMM_WORLD, n, 100, 0); /* this one may be taken */
  free_half(&sum);
  Element max = make_half(0, float16_max, 1);
  uint16_t in[n], out[n];
  for (int i = 0; i < n; ++i) in[i] = to_half((float)(i % 100 + rank), 0);
  MPI_Allreduce(in, out, n, max.type, max.op, MPI_COMM_WORLD);
  for (int i = 0; i < n; ++i)
    if (from_half(out[i], 0) != i % 100 + size - 1)
      fail("max", "float16", i, from_half(out[i], 0), i % 100 + size - 1);
  free_half(&max);
}

static void sum_in_rank_order(void) { /* not commutative: MPI promises the order */
  Element e = make_half(0, float16_sum, 0);
  check_sum(&e, MPI_COMM_WORLD, n, 100, 0);
  free_half(&e);
}

static void byte_sum(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < 2 * *count; ++i) ((uint8_t*)inout)[i] += ((uint8_t*)in)[i];
}

static void sum_of_byte_pairs(void) { /* a type of two bytes that is no number of two bytes */
  Element pair = make_half(0, byte_sum, 1);
  uint8_t in[2 * n], out[2 * n];
  for (int i = 0; i < 2 * n; ++i) in[i] = (uint8_t)(i % 30 + rank);
  MPI_Allreduce(in, out, n, pair.type, pair.op, MPI_COMM_WORLD);
  for (int i = 0; i < 2 * n; ++i)
    if (out[i] != sum_over_ranks(i % 30)) fail("sum", "bytes", i, out[i], sum_over_ranks(i % 30));
  free_half(&pair);
}

static void strided_half_sum(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) {
    uint16_t* const y = (uint16_t*)inout + 2 * i;
    *y = to_half(from_half(((uint16_t*)in)[2 * i], 0) + from_half(*y, 0), 0);
  }
}

static void sum_of_strided_halves(void) { /* two bytes of data in each four */
  MPI_Datatype type;
  MPI_Op op;
  uint16_t in[2 * n], out[2 * n];
  MPI_Type_create_resized(MPI_UINT16_T, 0, 4, &type);
  MPI_Type_commit(&type);
  MPI_Op_create(strided_half_sum, 1, &op);
  for (int i = 0; i < 2 * n; ++i) {
    in[i] = to_half((float)(i % 100 + rank), 0);
    out[i] = 7;
  }
  MPI_Allreduce(in, out, n, type, op, MPI_COMM_WORLD);
  for (int i = 0; i < 2 * n; i += 2) {
    if (from_half(out[i], 0) != sum_over_ranks(i % 100))
      fail("sum", "strided float16", i, from_half(out[i], 0), sum_over_ranks(i % 100));
    if (out[i + 1] != 7) fail("gap", "strided float16", i + 1, out[i + 1], 7);
  }
  MPI_Type_free(&type);
  MPI_Op_free(&op);
}

static void sum_of_shorts(void) {
  short in[n], out[n];
  for (int i = 0; i < n; ++i) in[i] = (short)(i + rank);
  MPI_Allreduce(in, out, n, MPI_SHORT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < n; ++i)
    if (out[i] != sum_over_ranks(i)) fail("sum", "short", i, out[i], sum_over_ranks(i));
}

static void sum_over_the_other_side(void) { /* what it is on an inter-communicator */
  MPI_Comm half, both;
  float in[n], out[n];
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 7, &both);
  for (int i = 0; i < n; ++i) in[i] = (float)(i + rank);
  MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, both);
  for (int i = 0; i < n; ++i) {
    float expected = 0;
    for (int r = 1 - rank % 2; r < size; r += 2) expected += (float)(i + r);
    if (out[i] != expected) fail("sum", "float, inter-communicator", i, out[i], expected);
  }
  MPI_Comm_free(&both);
  MPI_Comm_free(&half);
}

int main(int argc, char** argv) {
  const Element element = {"float", 4, 'f', MPI_FLOAT, MPI_SUM};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  max_of_floats();
  bits_in_common();
  max_of_halves();
  sum_in_rank_order();
  sum_of_byte_pairs();
  sum_of_strided_halves();
  sum_of_shorts();
  if (size > 1) sum_over_the_other_side();
  check_sum(&element, MPI_COMM_SELF, n, 100, 0);
  check_sum(&element, MPI_COMM_WORLD, 0, 100, 0);
  check_sum(&element, MPI_COMM_WORLD, 1, 100, 1);
  MPI_Finalize();
  return 0;
}
