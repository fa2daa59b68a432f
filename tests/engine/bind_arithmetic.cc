// fpisa.h and integers.h, over NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "innetwork/fpisa.h"
#include "innetwork/integers.h"
#include "numeric/codec.h"

namespace omnihvd {
namespace {

namespace py = pybind11;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Codes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;

// Adds rows one after another.
std::tuple<Ints, Ints, Floats> fpisa_sum(const Floats& rows, bool approximate) {
  if (rows.ndim() != 2 || rows.shape(0) == 0) throw py::value_error("not [rows, n], rows > 0");
  const auto at = rows.unchecked<2>();
  const auto add = approximate ? fpisa::add_approximately : fpisa::add;
  Ints exponents(at.shape(1)), mantissas(at.shape(1));
  Floats sums(at.shape(1));
  for (py::ssize_t i = 0; i < at.shape(1); ++i) {
    fpisa::Register sum = fpisa::from_float(at(0, i));
    for (py::ssize_t row = 1; row < at.shape(0); ++row)
      sum = add(sum, fpisa::from_float(at(row, i)));
    exponents.mutable_at(i) = sum.exponent;
    mantissas.mutable_at(i) = sum.mantissa;
    sums.mutable_at(i) = fpisa::to_float(sum);
  }
  return {exponents, mantissas, sums};
}

const IntegerOps& ops_named(const std::string& implementation) {
  const IntegerOps* const ops = integer_ops_named(implementation);
  if (!ops) throw py::value_error("not on this CPU: " + implementation);
  return *ops;
}

uint8_t exponent_of(const Floats& block, const std::string& implementation) {
  return ops_named(implementation).exponent(block.data(), size_t(block.size()));
}

std::tuple<Ints, bool> to_integers(const Floats& block, uint8_t exponent, uint8_t bits,
                                   const std::string& implementation) {
  Ints integers(block.size());
  const bool numbers =
      ops_named(implementation)
          .from_floats(block.data(), size_t(block.size()), exponent, bits, integers.mutable_data());
  return {integers, numbers};
}

std::tuple<Codes, bool> to_codes(const Floats& block, uint8_t exponent, uint8_t bits, uint32_t seed,
                                 uint32_t who, uint64_t number, const std::string& implementation) {
  Codes codes(block.size());
  const uint64_t key = block_key(seed, who, number);
  const bool numbers = ops_named(implementation)
                           .codes_from_floats(block.data(), size_t(block.size()), exponent, bits,
                                              key, codes.mutable_data());
  return {codes, numbers};
}

Ints from_codes(const Codes& codes, const std::string& implementation) {
  Ints integers(codes.size());
  ops_named(implementation).from_codes(codes.data(), size_t(codes.size()), integers.mutable_data());
  return integers;
}

Floats to_floats(const Ints& sums, uint8_t exponent, uint8_t bits,
                 const std::string& implementation) {
  Floats block(sums.size());
  ops_named(implementation)
      .to_floats(sums.data(), size_t(sums.size()), exponent, bits, block.mutable_data());
  return block;
}

// Inserts the NaN and infinite elements of rows into the sums of the other elements.
Floats with_no_numbers(const Floats& rows, const Floats& sums, bool added) {
  if (rows.ndim() != 2 || rows.shape(1) != sums.size()) throw py::value_error("not [rows, n], [n]");
  const auto n = size_t(sums.size());
  std::vector<int32_t> marks(n), all(n);
  for (py::ssize_t row = 0; row < rows.shape(0); ++row) {
    mark_no_numbers(rows.data(row), n, marks.data());
    for (size_t i = 0; i < n; ++i) all[i] = added ? all[i] + marks[i] : all[i] | marks[i];
  }
  Floats result(sums.size());
  std::copy(sums.data(), sums.data() + n, result.mutable_data());
  put_no_numbers(all.data(), n, result.mutable_data());
  return result;
}

}  // namespace

void bind_arithmetic(py::module_ m) {
  m.attr("NO_NUMBER") = fpisa::kNoNumber;
  m.def("fpisa_sum", &fpisa_sum, py::arg("rows"), py::arg("approximate") = false,
        "(exponents, mantissas, floats), each [n], of the sums over rows of float32 [rows, n].");
  m.def("bits_for", &integer_bits_for, py::arg("workers"));
  const auto best = py::arg("implementation") = "portable";
  m.def("exponent_of", &exponent_of, py::arg("block"), best);
  m.def("to_integers", &to_integers, py::arg("block"), py::arg("exponent"), py::arg("bits"), best,
        "(int32 [n], whether all of the block are numbers).");
  m.def("to_codes", &to_codes, py::arg("block"), py::arg("exponent"), py::arg("bits"),
        py::arg("seed"), py::arg("who"), py::arg("number"), best,
        "(uint8 [n], whether all of the block are numbers). number: the block's.");
  m.def("from_codes", &from_codes, py::arg("codes"), best, "int32 [n].");
  m.def("to_floats", &to_floats, py::arg("sums"), py::arg("exponent"), py::arg("bits"), best);
  m.def("with_no_numbers", &with_no_numbers, py::arg("rows"), py::arg("sums"), py::arg("added"),
        "added: marks are added, as slots do; else united.");
}

}  // namespace omnihvd
