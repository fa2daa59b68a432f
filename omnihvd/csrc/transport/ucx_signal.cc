// Gives SIGHUP back: UCX takes it as it is loaded (to switch on its most detailed log), and a
// program whose terminal is gone would not end. UCX_DEBUG_SIGNO in the environment goes before.
#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include <cstdlib>

namespace omnihvd {
namespace {

// As this library is loaded, right after UCX.
[[maybe_unused]] const bool given_back = [] {
  if (std::getenv("UCX_DEBUG_SIGNO")) return false;
  struct sigaction action{};
  Dl_info handler{}, ucs{};
  const bool by_ucs = sigaction(SIGHUP, nullptr, &action) == 0 &&
                      dladdr(reinterpret_cast<void*>(action.sa_handler), &handler) != 0 &&
                      dladdr(reinterpret_cast<void*>(&ucs_debug_disable_signal), &ucs) != 0 &&
                      handler.dli_fbase == ucs.dli_fbase;
  if (by_ucs) ucs_debug_disable_signal(SIGHUP);
  return by_ucs;
}();

}  // namespace
}  // namespace omnihvd
