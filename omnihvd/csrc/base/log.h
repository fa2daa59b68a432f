// Writes one line to standard error, with level, host and rank, as OMNIHVD_LOG allows. Any thread
// may log: each line is one write(2), so lines never mix.
#pragma once

#include <sstream>
#include <string>

namespace omnihvd {

// notice: not a warning, but useful to everyone; shown unless OMNIHVD_LOG asks for errors only.
enum class LogLevel { debug, info, notice, warning, error, off };

void set_log_level(LogLevel level);
void set_log_rank(int rank);  // shown in every later line; -1: unknown
int log_rank();
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);

std::string host_name();  // this host's name, as the kernel reports it

// The text of the last error that was logged, or that the level suppressed; empty: none yet.
std::string last_error();
void keep_error(const std::string& text);

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  const bool is_error = level == LogLevel::error;
  if (!is_error && !log_enabled(level)) return;
  std::ostringstream text;
  (text << ... << parts);
  if (is_error) keep_error(text.str());
  if (log_enabled(level)) log_line(level, text.str());
}

}  // namespace omnihvd
