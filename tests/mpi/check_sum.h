/* One checked MPI_Allreduce of any element type, against the closed form of its sum. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void fail(const char* what, const char* type, long index, double got,
                        double expected) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fprintf(stderr, "rank %d: %s of %s: element %ld is %g, not %g\n", rank, what, type, index, got,
          expected);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Rank r's element i: a small whole number, exact in every type, that differs by rank and index;
 * or zero, save in `kept` of 100 runs of 64 elements, other ones on each rank. */
static inline int value(int r, long i, int kept) {
  if ((i / 64 * 37 + r * 11) % 100 >= kept) return 0;
  return (int)(i % 7) + 2 * r + 1;
}

static inline long expected_sum(int ranks, long i, int kept) {
  long sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value(r, i, kept);
  return sum;
}

/* Half-precision numbers, of which MPI knows none: rounded toward zero, denormals are zero. */
static inline uint16_t to_half(float x, int bf16) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (bf16) return (uint16_t)(bits >> 16);
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size < 0x38800000) return (uint16_t)sign;
  if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  return (uint16_t)(sign | ((size >> 13) - (112 << 10)));
}

static inline float from_half(uint16_t h, int bf16) {
  uint32_t bits = (uint32_t)h << 16;
  if (!bf16)
    bits =
        (h & 0x7fff) == 0 ? 0 : (bits & 0x80000000) | ((uint32_t)(h & 0x7fff) + (112 << 10)) << 13;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

#define HALF_OP(name, bf16, expression)                                        \
  static inline void name(void* in, void* inout, int* n, MPI_Datatype* type) { \
    (void)type;                                                                \
    for (int i = 0; i < *n; ++i) {                                             \
      uint16_t* const y = (uint16_t*)inout + i;                                \
      const float a = from_half(((uint16_t*)in)[i], bf16);                     \
      const float b = from_half(*y, bf16);                                     \
      *y = to_half(expression, bf16);                                          \
    }                                                                          \
  }
HALF_OP(float16_sum, 0, a + b)
HALF_OP(bfloat16_sum, 1, a + b)

typedef struct {
  const char* name;
  int bytes;
  char kind; /* i: signed, u: unsigned, f: floating, h: float16, b: bfloat16 */
  MPI_Datatype type;
  MPI_Op op;
} Element;

static const char* const kHalfNames[] = {"float16", "bfloat16"};

/* A type of two bytes, as Horovod defines its float16, with an operation of its own. */
static inline Element make_half(int bf16, MPI_User_function* op, int commutative) {
  Element e = {kHalfNames[bf16], 2, bf16 ? 'b' : 'h', MPI_DATATYPE_NULL, MPI_OP_NULL};
  MPI_Type_contiguous(2, MPI_BYTE, &e.type);
  MPI_Type_commit(&e.type);
  MPI_Op_create(op, commutative, &e.op);
  return e;
}

static inline void free_half(Element* e) {
  MPI_Type_free(&e->type);
  MPI_Op_free(&e->op);
}

static inline double load(const Element* e, const void* buffer, long i) {
  const char* p = (const char*)buffer + i * e->bytes;
  switch (e->kind) {
    case 'h': return from_half(*(uint16_t*)p, 0);
    case 'b': return from_half(*(uint16_t*)p, 1);
    case 'f': return e->bytes == 4 ? *(float*)p : *(double*)p;
    case 'u': return e->bytes == 1 ? *(uint8_t*)p : e->bytes == 4 ? *(uint32_t*)p : *(uint64_t*)p;
    default: return e->bytes == 1 ? *(int8_t*)p : e->bytes == 4 ? *(int32_t*)p : *(int64_t*)p;
  }
}

static inline void store(const Element* e, void* buffer, long i, int v) {
  char* p = (char*)buffer + i * e->bytes;
  if (e->kind == 'h' || e->kind == 'b')
    *(uint16_t*)p = to_half((float)v, e->kind == 'b');
  else if (e->kind == 'f' && e->bytes == 4)
    *(float*)p = (float)v;
  else if (e->kind == 'f')
    *(double*)p = v;
  else if (e->bytes == 1)
    *(int8_t*)p = (int8_t)v;
  else if (e->bytes == 4)
    *(int32_t*)p = v;
  else
    *(int64_t*)p = v;
}

/* The input must stay as it was, and the memory behind the output too. */
static inline void check_sum(const Element* e, MPI_Comm comm, long count, int kept, int in_place) {
  enum { guard = 64 };
  int rank, size;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const size_t bytes = (size_t)(count * e->bytes);
  char* const out = malloc(bytes + guard);
  char* const in = in_place ? out : malloc(bytes + 1);
  memset(out, 0x5a, bytes + guard);
  for (long i = 0; i < count; ++i) store(e, in, i, value(rank, i, kept));
  MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, (int)count, e->type, e->op, comm);
  for (long i = 0; i < count; ++i) {
    const double expected = (double)expected_sum(size, i, kept);
    if (load(e, out, i) != expected) fail("sum", e->name, i, load(e, out, i), expected);
    if (!in_place && load(e, in, i) != value(rank, i, kept))
      fail("input", e->name, i, load(e, in, i), value(rank, i, kept));
  }
  for (int i = 0; i < guard; ++i)
    if (out[bytes + i] != 0x5a) fail("memory behind the end", e->name, i, out[bytes + i], 0x5a);
  if (!in_place) free(in);
  free(out);
}

/* The sum cannot be: its failure comes back where the error handler says so. Ends the process. */
static inline void expect_failure(void* buffer, int n, MPI_Datatype type) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int call = 0; call < 2; ++call) { /* once failed, each later call fails at once */
    const int code = MPI_Allreduce(MPI_IN_PLACE, buffer, n, type, MPI_SUM, MPI_COMM_WORLD);
    if (code == MPI_SUCCESS) fail("success", "a sum that cannot be", 0, code, MPI_ERR_OTHER);
  }
  printf("rank %d got the failure\n", rank);
  fflush(stdout);
  _exit(0); /* MPI_Finalize would wait for the dead */
}
