// _engine_tests.ways: the algorithms. Tests the pure parts, and the whole over a library written in
// Python.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "algorithms/ways.h"
#include "base/error.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

py::memoryview memory(const void* data, uint64_t count, DType dtype) {
  return py::memoryview::from_memory(const_cast<void*>(data), ssize_t(count * size_of(dtype)));
}

// A library over two functions: gather(what, bytes) -> list of every rank's bytes; and
// sum(how, in, out), over views of memory.
class PyLibrary : public Library {
 public:
  PyLibrary(int rank, int size, py::function gather, py::function sum)
      : rank_(rank), size_(size), gather_(std::move(gather)), sum_(std::move(sum)) {}
  DType dtype = DType::f32;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void run(const void* in, void* out, uint64_t count) override { add("original", in, out, count); }
  void unite(uint8_t* bits, size_t bytes) override {
    const std::vector<std::string> all = gather("union", bits, bytes);
    for (const std::string& theirs : all)
      for (size_t i = 0; i < bytes; ++i) bits[i] |= uint8_t(theirs.at(i));
  }
  void tell(void* data, size_t bytes) override {
    std::memcpy(data, gather("order", data, bytes)[0].data(), bytes);
  }

 private:
  std::vector<std::string> gather(const char* what, const void* data, size_t bytes) {
    py::gil_scoped_acquire gil;
    std::vector<std::string> all;
    for (py::handle item : gather_(what, py::bytes(static_cast<const char*>(data), bytes)))
      all.push_back(item.cast<py::bytes>());
    return all;
  }
  void add(const char* how, const void* in, void* out, uint64_t count) {
    py::gil_scoped_acquire gil;
    sum_(how, memory(in, count, dtype), memory(out, count, dtype));
  }

  const int rank_, size_;
  const py::function gather_, sum_;
};

std::string sum_by(Ways& ways, PyLibrary& library, py::array in, py::array out,
                   const std::string& dtype, py::function stream) {
  library.dtype = dtype_named(dtype);
  const uint64_t count = uint64_t(in.size());
  const void* source = in.data();
  void* target = out.mutable_data();
  const auto through_engine = [&](const void* from, void* to, const Codec& codec) {
    py::gil_scoped_acquire gil;
    return SumMade{
        codec ? Way::coded : Way::stream,
        stream(memory(from, count, library.dtype), memory(to, count, library.dtype), bool(codec))
            .cast<uint64_t>()};
  };
  py::gil_scoped_release release;
  return name_of(ways.sum({source, target, count, library.dtype}, library, through_engine));
}

}  // namespace

void bind_ways(py::module_ m) {
  m.attr("DENSE") = kDense;
  m.attr("UNKNOWN") = kUnknown;
  m.def("density_class", &density_class, py::arg("united"), py::arg("blocks"));
  m.def("size_class", &size_class, py::arg("bytes"));
  py::enum_<Way>(m, "Way")
      .value("auto", Way::automatic)
      .value("stream", Way::stream)
      .value("shared", Way::shared)
      .value("union", Way::unite)
      .value("original", Way::original)
      .value("coded", Way::coded);
  py::class_<Densities>(m, "Densities")
      .def(py::init<>())
      .def("guess",
           [](Densities& d, uint64_t count) {
             const auto guess = d.guess(count, DType::f32);
             return std::make_pair(guess.density, guess.look);
           })
      .def("learn", &Densities::learn);
  py::class_<Policy>(m, "Policy")
      .def(py::init<>())
      .def("measured",
           [](Policy& p, int size, int density, Way way, uint64_t bytes,
              std::optional<uint64_t> united,
              double seconds) { p.measured({size, density}, way, bytes, united, seconds); })
      .def("connects", &Policy::connects)
      .def("connect_at_once", &Policy::connect_at_once)
      .def("library_took", &Policy::library_took, py::arg("bytes"), py::arg("seconds"))
      .def("order", [](Policy& p, int size, int density, uint64_t bytes) {
        const Order order = p.order({size, density}, bytes);
        return std::make_tuple(order.now, order.trial, order.after);
      });
  py::class_<PyLibrary>(m, "Library")
      .def(py::init<int, int, py::function, py::function>(), py::arg("rank"), py::arg("size"),
           py::arg("gather"), py::arg("sum"));
  py::class_<Ways>(m, "Ways")
      .def(py::init([](Way way, uint32_t block_size, std::function<double()> clock, bool scatters,
                       double connect_s) {
             Settings settings;
             settings.way = way;
             settings.block_size = block_size;
             return std::make_unique<Ways>(settings, scatters ? Op::reduce_scatter : Op::allreduce,
                                           connect_s, clock ? clock : steady_seconds);
           }),
           py::arg("way"), py::arg("block_size") = 256, py::arg("clock") = nullptr,
           py::arg("scatters") = false, py::arg("connect_s") = kConnectHosts)
      .def("allreduce", &sum_by, py::arg("library"), py::arg("input"), py::arg("output"),
           py::arg("dtype"), py::arg("stream"));
}

}  // namespace omnihvd
