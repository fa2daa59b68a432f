#include "nccl/api.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace omnihvd {
namespace {

void* library_with(const char* symbol) {
  if (dlsym(RTLD_DEFAULT, symbol) != nullptr) return RTLD_DEFAULT;
  // NCCL may be a dependency of a library that Python loaded, and then is not in the global scope.
  // If there is no NCCL, the result is null, which is RTLD_DEFAULT, and no symbol will be found.
  return dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
}

NcclApi load() {
  void* const library = library_with("pncclAllReduce");
  std::string missing;
  const auto find = [&](auto* function, const char* symbol, bool required) {
    void* const found = dlsym(library, symbol);
    *reinterpret_cast<void**>(function) = found;
    if (found == nullptr && required && missing.empty()) missing = symbol;
  };
  NcclApi api;
  find(&api.all_reduce, "pncclAllReduce", true);
  find(&api.reduce_scatter, "pncclReduceScatter", true);
  find(&api.all_gather, "pncclAllGather", true);
  find(&api.group_start, "pncclGroupStart", true);
  find(&api.group_end, "pncclGroupEnd", true);
  find(&api.group_simulate_end, "pncclGroupSimulateEnd", false);
  find(&api.comm_count, "pncclCommCount", true);
  find(&api.comm_user_rank, "pncclCommUserRank", true);
  find(&api.comm_device, "pncclCommCuDevice", true);
  find(&api.comm_get_async_error, "pncclCommGetAsyncError", true);
  find(&api.comm_destroy, "pncclCommDestroy", true);
  find(&api.comm_abort, "pncclCommAbort", true);
  find(&api.comm_finalize, "pncclCommFinalize", false);
  find(&api.get_unique_id, "pncclGetUniqueId", true);
  find(&api.comm_init_rank_config, "pncclCommInitRankConfig", false);
  find(&api.comm_shrink, "pncclCommShrink", false);
  find(&api.error_string, "pncclGetErrorString", true);
  if (!missing.empty())
    throw Error(
        "no NCCL with the function " + missing +
        " is loaded in this process: the program must be linked to the shared libnccl.so.2");
  return api;
}

}  // namespace

const NcclApi& nccl() {
  static const NcclApi api = load();  // the next call retries if it throws
  return api;
}

void check_nccl(NcclResult result, const char* what) {
  if (result == NcclResult::success || result == NcclResult::in_progress) return;
  throw Error(std::string(what) + " failed: " + nccl().error_string(result));
}

}  // namespace omnihvd
