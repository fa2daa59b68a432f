// omnihvd._engine.hook: redirects a function of loaded libraries to one in a shim library.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/error.h"
#include "intercept/got_hook.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// Never unloads a shim: a thread may be inside it at any time.
void* load_function(const std::string& library, const std::string& symbol) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(std::string("cannot load a part of omnihvd: ") + dlerror());
  void* const function = dlsym(handle, symbol.c_str());
  if (function == nullptr) throw Error(library + " has no function " + symbol);
  return function;
}

std::vector<std::string> install(const std::string& library_substring, const std::string& symbol,
                                 const std::string& shim_library_path,
                                 const std::string& shim_symbol) {
  return install_hook(library_substring, symbol, load_function(shim_library_path, shim_symbol));
}

}  // namespace

void bind_hook(py::module_ m) {
  m.doc() = "Redirects a function that loaded libraries import to one of a shim library.";
  m.def("install", &install, py::arg("library_substring"), py::arg("symbol"),
        py::arg("shim_library_path"), py::arg("shim_symbol"),
        "install_hook() of got_hook.h, with `shim_symbol` of the shim library as the replacement. "
        "EngineError: the shim cannot be loaded or lacks the function, or the memory cannot be "
        "written.");
  m.def("installed", &installed_hooks, "As installed_hooks() of got_hook.h.");
  m.def("remove", &remove_hooks, py::arg("symbol"), "As remove_hooks() of got_hook.h.");
  m.def("loaded_libraries", &loaded_libraries, py::arg("text"), "As in got_hook.h.");
  m.def("imports", &imports, py::arg("library"), py::arg("symbol"), "As in got_hook.h.");
  m.def("provider", &provider, py::arg("library"), py::arg("symbol"), "As in got_hook.h.");
}

}  // namespace omnihvd
