// The Python module omnihvd.inline._xdp: there where libbpf and clang were, when omnihvd was built.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "inline/xdp/plane.h"
#include "python/inline_counts.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

std::unique_ptr<XdpPlane> make_plane(const std::string& object, const std::string& interface,
                                     const std::string& host, uint16_t port,
                                     const std::string& group, uint32_t jobs, uint16_t slots) {
  return std::make_unique<XdpPlane>(
      XdpPlane::Options{object, interface, host, port, group, jobs, slots});
}

py::tuple run(const XdpPlane& plane, const py::bytes& frame, uint32_t repeat) {
  const XdpPlane::Run run = plane.run(frame, repeat);
  return py::make_tuple(run.verdict, py::bytes(run.frame), run.nanoseconds);
}

}  // namespace
}  // namespace omnihvd

PYBIND11_MODULE(_xdp, m) {
  using omnihvd::XdpPlane;
  py::module_::import("omnihvd._engine");  // for EngineError
  m.def("interface_address", &omnihvd::interface_address, py::arg("interface"),
        "Its IPv4 address. EngineError: it is not there, not up, or has none.");
  py::class_<XdpPlane>(m, "Plane", "The XDP program, loaded, and attached as long as this lives.")
      .def(py::init(&omnihvd::make_plane), py::kw_only(), py::arg("object"), py::arg("interface"),
           py::arg("host"), py::arg("port"), py::arg("group"), py::arg("jobs"), py::arg("slots"))
      .def(
          "pointer",
          [](XdpPlane& plane) {
            return reinterpret_cast<uintptr_t>(static_cast<omnihvd::InlinePlane*>(&plane));
          },
          "For Server(plane=...), which this must outlive.")
      .def("set_job", &XdpPlane::set_job, py::arg("job"), py::arg("key"), py::arg("workers"))
      .def(
          "counts", [](const XdpPlane& plane) { return omnihvd::dict_of_counts(plane.counts()); },
          "What became of contributions: {name: number}.")
      .def("run_time", &XdpPlane::run_time,
           "(runs, nanoseconds) of the program, where sysctl kernel.bpf_stats_enabled is 1.")
      .def_property_readonly("verified_instructions", &XdpPlane::verified_instructions)
      .def("run", &omnihvd::run, py::arg("frame"), py::arg("repeat") = 1,
           "(XDP's verdict, the frame after it, nanoseconds a run), without an interface.");
}
