// Restores the signal handlers that UCX replaces when it is loaded. UCX takes SIGHUP to switch on
// its most detailed log: a program would then survive the loss of its terminal. Some builds of UCX
// take the signals of errors: Python's faulthandler could then not report where they occur.
// UCX_DEBUG_SIGNO and UCX_HANDLE_ERRORS in the environment take precedence.
#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include <cstdlib>
#include <initializer_list>

namespace omnihvd {
namespace {

void give_back(int number) {
  struct sigaction action{};
  Dl_info handler{}, ucs{};
  if (sigaction(number, nullptr, &action) == 0 &&
      dladdr(reinterpret_cast<void*>(action.sa_handler), &handler) != 0 &&
      dladdr(reinterpret_cast<void*>(&ucs_debug_disable_signal), &ucs) != 0 &&
      handler.dli_fbase == ucs.dli_fbase)
    ucs_debug_disable_signal(number);
}

// Runs when this library is loaded, right after UCX.
[[maybe_unused]] const bool given_back = [] {
  if (!std::getenv("UCX_DEBUG_SIGNO")) give_back(SIGHUP);
  if (!std::getenv("UCX_HANDLE_ERRORS"))
    for (const int number : {SIGILL, SIGBUS, SIGFPE, SIGSEGV}) give_back(number);
  return true;
}();

}  // namespace
}  // namespace omnihvd
