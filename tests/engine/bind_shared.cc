// _engine_tests.shared: sums over shared memory.
#include <pybind11/functional.h>

#include "algorithms/shared_memory/shared_sum.h"
#include "base/error.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {

static void interrupt(SharedSum& sum, const std::string& why) { sum.abort(why); }

void bind_shared(py::module_ m) {
  m.def("chunk_bytes", &chunk_bytes, py::arg("ranks"));
  py::class_<SharedSum>(m, "SharedSum")
      .def(py::init([](const Settings& settings, int rank, int size, py::function allgather) {
             PyExchange exchange(rank, size, std::move(allgather));
             py::gil_scoped_release release;
             std::string obstacle;
             auto sum = SharedSum::create(exchange, settings, "here", &obstacle);
             if (!sum) throw Error(obstacle);
             return sum;
           }),
           py::arg("settings"), py::arg("rank"), py::arg("size"), py::arg("allgather"))
      .def("allreduce", &allreduce<SharedSum>, py::arg("input"), py::arg("output"),
           py::arg("dtype") = "", py::arg("codec") = Codec());
}

}  // namespace omnihvd
