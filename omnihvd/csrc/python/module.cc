// The Python module omnihvd._engine: one submodule per layer.
#include <pybind11/pybind11.h>

#include "base/error.h"
#include "base/plugin.h"

namespace omnihvd {
void bind_codec(pybind11::module_ m);
void bind_transport(pybind11::module_ m);
void bind_session(pybind11::module_ m);
void bind_communicator(pybind11::module_ m);
void bind_hook(pybind11::module_ m);
}  // namespace omnihvd

PYBIND11_MODULE(_engine, m) {
  namespace py = pybind11;
  py::register_exception<omnihvd::Error>(m, "EngineError", PyExc_RuntimeError);
  omnihvd::bind_codec(m.def_submodule("codec"));  // first: defines argument types
  omnihvd::bind_transport(m.def_submodule("transport"));
  pybind11::module_ session = m.def_submodule("session");
  omnihvd::bind_session(session);
  omnihvd::bind_communicator(session);
  omnihvd::bind_hook(m.def_submodule("hook"));
  m.def("build_id", &omnihvd::build_id, "The same in all libraries of this build.");
  m.def("load_part", &omnihvd::load_part, py::arg("name"),
        "Loads the library libomnihvd_NAME.so. EngineError: it is missing, or of another build.");
}
