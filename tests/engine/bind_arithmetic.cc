// fpisa.h, over NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <tuple>

#include "protocol/fpisa.h"

namespace omnihvd {
namespace {

namespace py = pybind11;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// Rows are added one after another.
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

}  // namespace

void bind_arithmetic(py::module_ m) {
  m.attr("NO_NUMBER") = fpisa::kNoNumber;
  m.def("fpisa_sum", &fpisa_sum, py::arg("rows"), py::arg("approximate") = false,
        "(exponents, mantissas, floats), each [n], of the sums over rows of float32 [rows, n].");
}

}  // namespace omnihvd
