#include "base/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "base/error.h"

namespace omnihvd {

namespace {

void load(const std::string& path, const std::string& remedy) {
  static std::mutex mutex;
  static auto* const loaded = new std::map<std::string, std::string>;  // to its failure
  const std::lock_guard lock(mutex);
  if (const auto before = loaded->find(path); before != loaded->end()) {
    if (!before->second.empty()) throw Error(before->second);
    return;
  }
  if (access(path.c_str(), R_OK) != 0) throw Error(path + " is missing" + remedy);
  // Lazily: a library of another build may lack functions, which its id explains better.
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) throw Error(path + " cannot be loaded (" + dlerror() + ")" + remedy);
  const auto* const id = static_cast<const char*>(dlsym(library, "omnihvd_plugin_build_id"));
  if (!id || id != build_id()) {
    const std::string theirs = id ? std::string("of build ") + id : "no part of omnihvd";
    dlclose(library);
    throw Error(path + " is " + theirs + ", and libomnihvd.so is of build " + build_id() + remedy);
  }
  std::string& failure = (*loaded)[path];
  try {
    reinterpret_cast<void (*)()>(dlsym(library, "omnihvd_plugin_register"))();
  } catch (const Error& why) {  // part of it is registered
    failure = path + ": " + why.what();
    throw Error(failure);
  }
}

}  // namespace

std::string build_id() { return OMNIHVD_BUILD_ID; }

void load_plugin(const std::string& path) {
  load(path, ": build it again, with the headers of this omnihvd (HACKING.md)");
}

std::string& plugin_way() {
  static auto* const name = new std::string;
  return *name;
}

void load_part(const std::string& name) {
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&build_id), &own);
  const std::string path = own.dli_fname;
  load(path.substr(0, path.rfind('/') + 1) + "libomnihvd_" + name + ".so",
       ": install omnihvd again, so that all of its libraries are of one build (pip install "
       "--force-reinstall omnihvd; in a checkout, make build)");
}

}  // namespace omnihvd
