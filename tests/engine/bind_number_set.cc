// number_set.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "protocol/number_set.h"

namespace omnihvd {
namespace {

namespace py = pybind11;

py::bytes write_numbers(const std::vector<uint32_t>& numbers, uint64_t range) {
  std::string bytes(set_bytes(numbers.size(), range), '\0');
  write_set(numbers.data(), numbers.size(), range, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

std::optional<std::vector<uint32_t>> read_numbers(const py::bytes& bytes, uint64_t count,
                                                  uint64_t range) {
  const std::string_view view = bytes;
  if (view.size() != set_bytes(count, range))
    throw py::value_error("not as many bytes as such a set has");
  // Memory of exactly this size, so that a sanitizer sees reads beyond it.
  const std::vector<uint8_t> in(view.begin(), view.end());
  std::vector<uint32_t> numbers(count);
  if (!read_set(in.data(), count, range, numbers.data())) return std::nullopt;
  return numbers;
}

}  // namespace

void bind_number_set(py::module_ m) {
  m.def("write_numbers", &write_numbers, py::arg("numbers"), py::arg("range"),
        "Bytes of a set of numbers below `range`.");
  m.def("read_numbers", &read_numbers, py::arg("bytes"), py::arg("count"), py::arg("range"),
        "The numbers, or None if the bytes are not those of such a set. ValueError: too few or "
        "many.");
}

}  // namespace omnihvd
