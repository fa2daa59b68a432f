#include "transport/ucx/ucx_log.h"

#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/log.h"

namespace omnihvd {
namespace {

ucs_log_func_rc_t on_line(const char*, unsigned, const char*, ucs_log_level_t level,
                          const ucs_log_component_config_t*, const char* format,
                          va_list arguments) {
  const bool ours = level == UCS_LOG_LEVEL_ERROR || level == UCS_LOG_LEVEL_WARN;
  if (!ours) return UCS_LOG_FUNC_RC_CONTINUE;
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  // If a peer's memory is gone, the peer has ended. If that matters, its failure is reported. It
  // does not matter if ranks end their job at different times and one was still connecting.
  const bool peer_ended = std::strstr(text, "shmat(") && std::strstr(text, "Invalid argument");
  log(peer_ended ? LogLevel::debug : LogLevel::warning, "UCX: ", text);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void take_over_ucx_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!std::getenv("UCX_LOG_LEVEL") && !std::getenv("UCX_LOG_FILE"))
      ucs_log_push_handler(on_line);
  });
}

}  // namespace omnihvd
