// The Python module omnihvd.inline._xdp. Exists only if omnihvd was built with libbpf and clang.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "innetwork/af_xdp/interface.h"
#include "innetwork/counts_dict.h"
#include "innetwork/xdp/device.h"
#include "innetwork/xdp/plane.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

constexpr char kRunTime[] =
    "(runs, nanoseconds) of the program, where sysctl kernel.bpf_stats_enabled is 1.";

std::unique_ptr<XdpPlane> make_plane(const std::string& object, const std::string& interface,
                                     const std::string& host, uint16_t port,
                                     const std::string& group, uint32_t jobs, uint16_t slots) {
  return std::make_unique<XdpPlane>(
      XdpPlane::Options{object, interface, host, port, group, jobs, slots});
}

std::unique_ptr<AfXdpInterface> make_interface(const std::string& object,
                                               const std::string& interface,
                                               const std::string& host, uint16_t port,
                                               const std::string& group) {
  return std::make_unique<AfXdpInterface>(
      AfXdpInterface::Options{object, interface, host, port, group});
}

py::tuple run(const XdpPlane& plane, const py::bytes& frame, uint32_t repeat) {
  const XdpPlane::Run run = plane.run(frame, repeat);
  return py::make_tuple(run.verdict, py::bytes(run.frame), run.nanoseconds);
}

// Passes a plane or an interface to the server that uses it.
template <class As, class T>
uintptr_t pointer(T& to) {
  return reinterpret_cast<uintptr_t>(static_cast<As*>(&to));
}

void bind_plane(py::module_& m) {
  py::class_<XdpPlane>(m, "Plane", "The XDP program, loaded, and attached as long as this lives.")
      .def(py::init(&make_plane), py::kw_only(), py::arg("object"), py::arg("interface"),
           py::arg("host"), py::arg("port"), py::arg("group"), py::arg("jobs"), py::arg("slots"))
      .def("pointer", &pointer<InlinePlane, XdpPlane>,
           "For Server(plane=...), which this must outlive.")
      .def("set_job", &XdpPlane::set_job, py::arg("job"), py::arg("key"), py::arg("workers"),
           py::arg("numbers") = uint8_t{INLINE_INT32})
      .def(
          "counts", [](const XdpPlane& plane) { return dict_of_counts(plane.counts()); },
          "Outcomes of contributions: {name: number}.")
      .def(
          "run_time", [](const XdpPlane& plane) { return plane.program().run_time(); }, kRunTime)
      .def_property_readonly(
          "verified_instructions",
          [](const XdpPlane& plane) { return plane.program().verified_instructions(); })
      .def("run", &run, py::arg("frame"), py::arg("repeat") = 1,
           "(XDP's verdict, the frame after it, nanoseconds a run), without an interface.");
}

void bind_interface(py::module_& m) {
  py::class_<AfXdpInterface>(m, "Interface", "Sockets of AF_XDP, as long as this lives.")
      .def(py::init(&make_interface), py::kw_only(), py::arg("object"), py::arg("interface"),
           py::arg("host"), py::arg("port"), py::arg("group"))
      .def("pointer", &pointer<InlineInterface, AfXdpInterface>,
           "For Server(interface=...), which this must outlive.")
      .def("dropped", &AfXdpInterface::dropped, "Frames for which there was no room.")
      .def_property_readonly("queues", &AfXdpInterface::queues)
      .def_property_readonly("zero_copy", &AfXdpInterface::is_zero_copy)
      .def("run_time", [](const AfXdpInterface& i) { return i.program().run_time(); }, kRunTime);
}

}  // namespace
}  // namespace omnihvd

PYBIND11_MODULE(_xdp, m) {
  py::module_::import("omnihvd._engine");  // defines EngineError
  m.def("interface_address", &omnihvd::interface_address, py::arg("interface"),
        "Its IPv4 address. EngineError: it is not there, not up, or has none.");
  omnihvd::bind_plane(m);
  omnihvd::bind_interface(m);
}
