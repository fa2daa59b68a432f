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
        "Make loaded libraries with `library_substring` in their path call `shim_symbol` of "
        "the shim library for `symbol`. Returns the paths of the libraries that import the symbol; "
        "an empty list means that nothing was hooked: none is loaded (see loaded_libraries) or "
        "none imports it (see imports). May be repeated. EngineError: the shim cannot be loaded or "
        "lacks the function, or the memory cannot be written.");
  m.def("installed", &installed_hooks, "The hooks in force: a set of (library path, symbol).");
  m.def("remove", &remove_hooks, py::arg("symbol"),
        "Undo install() for this symbol, in all libraries.");
  m.def("loaded_libraries", &loaded_libraries, py::arg("text"),
        "Paths of the loaded shared libraries that contain `text`, in load order.");
  m.def("imports", &imports, py::arg("library"), py::arg("symbol"),
        "Whether the loaded library with this path calls `symbol` in another library, so that it "
        "can be hooked. EngineError: it is not loaded.");
  m.def("provider", &provider, py::arg("library"), py::arg("symbol"),
        "Path of the library in which the loaded library finds `symbol`. EngineError: it is not "
        "loaded, or the function is nowhere.");
}

}  // namespace omnihvd
