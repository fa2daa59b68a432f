// The Python module _engine_tests: the parts of the engine that only tests and benchmarks use. It
// is built beside the engine in a checkout (setup.py), and is in no wheel.
#include <pybind11/pybind11.h>

#include "base/plugin.h"

namespace omnihvd {
void bind_arithmetic(pybind11::module_ m);
void bind_codec(pybind11::module_ m);
void bind_datagrams(pybind11::module_ m);
void bind_direct(pybind11::module_ m);
void bind_group(pybind11::module_ m);
void bind_inline(pybind11::module_ m);
void bind_list_sums(pybind11::module_ m);
void bind_polling(pybind11::module_ m);
void bind_protocol(pybind11::module_ m);
void bind_transport(pybind11::module_ m);
void bind_session(pybind11::module_ m);
void bind_shared(pybind11::module_ m);
void bind_ways(pybind11::module_ m);
}  // namespace omnihvd

PYBIND11_MODULE(_engine_tests, m) {
  pybind11::module_::import("omnihvd._engine");  // for its types: EngineError, Codec, Settings
  omnihvd::load_part("innetwork");
  omnihvd::bind_arithmetic(m.def_submodule("arithmetic"));
  omnihvd::bind_codec(m.def_submodule("codec"));
  omnihvd::bind_datagrams(m.def_submodule("datagrams"));
  omnihvd::bind_direct(m.def_submodule("direct"));
  omnihvd::bind_inline(m.def_submodule("inline_parts"));
  omnihvd::bind_protocol(m.def_submodule("protocol"));
  omnihvd::bind_transport(m.def_submodule("transport"));
  omnihvd::bind_session(m.def_submodule("session"));
  omnihvd::bind_group(m.attr("session"));
  omnihvd::bind_list_sums(m.attr("session"));
  omnihvd::bind_polling(m.attr("session"));
  omnihvd::bind_shared(m.def_submodule("shared"));
  omnihvd::bind_ways(m.def_submodule("ways"));
}
