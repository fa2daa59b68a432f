// _engine_tests.session.allreduce_blocks: sums of lists of blocks over a Group, for NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "engine/list_sum.h"
#include "omnihvd/csrc/python/sums.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

py::object allreduce_blocks(Group& group, const py::array& values,
                            const py::array_t<int64_t, py::array::c_style>& indices,
                            uint64_t blocks, const py::object& output) {
  const DType dtype = dtype_of(values, "");
  const auto length = uint64_t(values.shape(1));
  ListCall call{values.data(), indices.data(), uint64_t(indices.shape(0)), length, blocks, dtype};
  if (!output.is_none()) call.out = py::cast<py::array>(output).mutable_data();
  ListedSums sums;
  interruptible([&](const std::string& why) { interrupt(group, why); },
                [&] { sum_lists(group, call, &sums); });
  if (call.out) return py::none();
  py::array_t<int64_t> numbers(ssize_t(sums.count()));
  py::array rows(values.dtype(), {ssize_t(sums.count()), ssize_t(length)});
  sums.take(numbers.mutable_data(), rows.mutable_data());
  return py::make_tuple(numbers, rows);
}

}  // namespace

void bind_list_sums(py::module_ m) {
  m.def("allreduce_blocks", &allreduce_blocks, py::arg("group"), py::arg("values"),
        py::arg("indices"), py::arg("blocks"), py::arg("output") = py::none());
}

}  // namespace omnihvd
