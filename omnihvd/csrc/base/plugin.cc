#include "base/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "base/error.h"

namespace omnihvd {

constexpr char kRemedy[] =
    ": install omnihvd again, so that all of its libraries are of one build (pip install "
    "--force-reinstall omnihvd; in a checkout, make build)";

std::string build_id() { return OMNIHVD_BUILD_ID; }

void load_plugin(const std::string& path) {
  static std::mutex mutex;
  static auto* const loaded = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (loaded->count(path) > 0) return;
  if (access(path.c_str(), R_OK) != 0) throw Error(path + " is missing" + kRemedy);
  // Lazily: a library of another build may lack functions, which its id explains better.
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) throw Error(path + " cannot be loaded (" + dlerror() + ")" + kRemedy);
  const auto* const id = static_cast<const char*>(dlsym(library, "omnihvd_plugin_build_id"));
  if (!id || id != build_id()) {
    const std::string theirs = id ? std::string("of build ") + id : "no part of omnihvd";
    dlclose(library);
    throw Error(path + " is " + theirs + ", and libomnihvd.so is of build " + build_id() + kRemedy);
  }
  reinterpret_cast<void (*)()>(dlsym(library, "omnihvd_plugin_register"))();
  loaded->insert(path);
}

void load_part(const std::string& name) {
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&build_id), &own);
  const std::string path = own.dli_fname;
  load_plugin(path.substr(0, path.rfind('/') + 1) + "libomnihvd_" + name + ".so");
}

}  // namespace omnihvd
