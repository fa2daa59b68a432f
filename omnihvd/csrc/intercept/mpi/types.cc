#include "intercept/mpi/types.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace omnihvd {
namespace {

// In some MPIs, handles are not constants.
std::optional<DType> summed_as(MPI_Datatype type) {
  static const struct {
    MPI_Datatype type;
    std::optional<DType> dtype;
  } table[] = {
      {MPI_FLOAT, dtype_of<float>()},
      {MPI_DOUBLE, dtype_of<double>()},
      {MPI_INT8_T, dtype_of<int8_t>()},
      {MPI_SIGNED_CHAR, dtype_of<signed char>()},
      {MPI_UINT8_T, dtype_of<uint8_t>()},
      {MPI_UNSIGNED_CHAR, dtype_of<unsigned char>()},
      {MPI_INT32_T, dtype_of<int32_t>()},
      {MPI_UINT32_T, dtype_of<uint32_t>()},
      {MPI_INT64_T, dtype_of<int64_t>()},
      {MPI_UINT64_T, dtype_of<uint64_t>()},
      {MPI_INT, dtype_of<int>()},
      {MPI_UNSIGNED, dtype_of<unsigned>()},
      {MPI_LONG, dtype_of<long>()},
      {MPI_UNSIGNED_LONG, dtype_of<unsigned long>()},
      {MPI_LONG_LONG, dtype_of<long long>()},
      {MPI_UNSIGNED_LONG_LONG, dtype_of<unsigned long long>()},
  };
  const auto found =
      std::find_if(std::begin(table), std::end(table), [type](auto& e) { return e.type == type; });
  if (found == std::end(table)) return std::nullopt;
  return found->dtype;
}

bool is_predefined(MPI_Op op) {
  const MPI_Op table[] = {MPI_SUM,    MPI_MAX,    MPI_MIN,     MPI_PROD, MPI_LAND,
                          MPI_BAND,   MPI_LOR,    MPI_BOR,     MPI_LXOR, MPI_BXOR,
                          MPI_MINLOC, MPI_MAXLOC, MPI_REPLACE, MPI_NO_OP};
  return std::find(std::begin(table), std::end(table), op) != std::end(table);
}

bool is_two_contiguous_bytes(MPI_Datatype type) {
  int size = 0;
  MPI_Aint begin = 0, extent = 0, true_begin = 0, true_extent = 0;
  return PMPI_Type_size(type, &size) == MPI_SUCCESS && size == 2 &&
         PMPI_Type_get_extent(type, &begin, &extent) == MPI_SUCCESS && begin == 0 && extent == 2 &&
         PMPI_Type_get_true_extent(type, &true_begin, &true_extent) == MPI_SUCCESS &&
         true_begin == 0 && true_extent == 2;
}

// Sums with the same result in every implementation: exact, or clearly infinite.
struct Sample {
  uint16_t a, b, sum;
};
constexpr Sample kFloat16[] = {
    {0x3c00, 0x3c00, 0x4000},  // 1 + 1
    {0x3800, 0x3400, 0x3a00},  // 0.5 + 0.25
    {0xc200, 0x4500, 0x4000},  // -3 + 5
    {0x6000, 0x3800, 0x6001},  // 512 + 0.5: all bits of the significand
    {0x0000, 0xbc00, 0xbc00},  // 0 - 1
    {0x0400, 0x0400, 0x0800},  // 2^-14 + 2^-14: the smallest normal number
    {0x7bff, 0x7bff, 0x7c00},  // the largest number, twice: infinite
};
constexpr Sample kBfloat16[] = {
    {0x3f80, 0x3f80, 0x4000},  // 1 + 1
    {0x3f00, 0x3e80, 0x3f40},  // 0.5 + 0.25
    {0xc040, 0x40a0, 0x4000},  // -3 + 5
    {0x4300, 0x3f80, 0x4301},  // 128 + 1: all bits of the significand
    {0x0000, 0xbf80, 0xbf80},  // 0 - 1
    {0x0080, 0x0080, 0x0100},  // 2^-126 + 2^-126: the smallest normal number
    {0x7f7f, 0x7f7f, 0x7f80},  // the largest number, twice: infinite
};

template <size_t n>
bool adds(MPI_Datatype type, MPI_Op op, const Sample (&samples)[n]) {
  constexpr int length = 19;  // two vectors of eight and a remainder, in most implementations
  uint16_t in[length], inout[length];
  for (int i = 0; i < length; ++i) {
    in[i] = samples[i % n].a;
    inout[i] = samples[i % n].b;
  }
  if (PMPI_Reduce_local(in, inout, length, type, op) != MPI_SUCCESS) return false;
  for (int i = 0; i < length; ++i)
    if (inout[i] != samples[i % n].sum) return false;
  return true;
}

}  // namespace

MpiSum recognise_sum(MPI_Datatype type, MPI_Op op) {
  if (type == MPI_DATATYPE_NULL) return {std::nullopt, Reason::dtype};
  if (op == MPI_OP_NULL) return {std::nullopt, Reason::op};
  if (op == MPI_BAND || op == MPI_BOR) return {std::nullopt, Reason::control};
  if (op == MPI_SUM) {
    const auto dtype = summed_as(type);
    return {dtype, dtype ? Reason::none : Reason::dtype};
  }
  int commutative = 0;
  if (!is_predefined(op) && is_two_contiguous_bytes(type) &&
      PMPI_Op_commutative(op, &commutative) == MPI_SUCCESS && commutative) {
    if (adds(type, op, kFloat16)) return {DType::f16, Reason::none};
    if (adds(type, op, kBfloat16)) return {DType::bf16, Reason::none};
  }
  return {std::nullopt, Reason::op};
}

}  // namespace omnihvd
