#include "nccl/api.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace omnihvd {
namespace {

void* library() {
  if (dlsym(RTLD_DEFAULT, "pncclAllReduce") != nullptr) return RTLD_DEFAULT;
  // NCCL may be a dependency of a library that Python loaded, and then is not in the global scope.
  // If there is no NCCL, the result is null, which is RTLD_DEFAULT, and no symbol will be found.
  return dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
}

}  // namespace

FoundFunction in_nccl(const char* symbol, bool required) {
  void* const found = dlsym(library(), symbol);
  if (found == nullptr && required)
    throw Error(
        "no NCCL with the function " + std::string(symbol) +
        " is loaded in this process: the program must be linked to the shared libnccl.so.2");
  return {found};
}

const NcclApi& nccl() {
  static const NcclApi api{};  // the next call retries if it throws
  return api;
}

void check_nccl(NcclResult result, const char* what) {
  if (is_error(result)) throw Error(std::string(what) + " failed: " + nccl().error_string(result));
}

}  // namespace omnihvd
