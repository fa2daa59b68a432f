#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <climits>
#include <mutex>

namespace omnihvd {
namespace {

std::atomic<LogLevel> current_level{LogLevel::notice};
std::atomic<int> current_rank{-1};

std::mutex last_mutex;  // guards last()
std::string& last() {
  static auto& text = *new std::string;  // outlives every thread that logs
  return text;
}

// The names of all levels but off: nothing is logged at that one.
constexpr const char* kLevelNames[] = {"debug", "info", "notice", "warning", "error"};

}  // namespace

void set_log_level(LogLevel level) { current_level = level; }
void set_log_rank(int rank) { current_rank = rank; }
int log_rank() { return current_rank; }
bool log_enabled(LogLevel level) { return level >= current_level; }

std::string last_error() {
  const std::lock_guard<std::mutex> lock(last_mutex);
  return last();
}

void keep_error(const std::string& text) {
  const std::lock_guard<std::mutex> lock(last_mutex);
  last() = text;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

void log_line(LogLevel level, const std::string& text) {
  std::ostringstream line;
  line << "[omnihvd " << kLevelNames[static_cast<size_t>(level)] << " " << host_name();
  if (current_rank >= 0) line << " rank " << current_rank;
  line << "] " << text << '\n';
  const std::string bytes = line.str();
  // A failed write to stderr cannot be reported anywhere.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, bytes.data(), bytes.size());
}

}  // namespace omnihvd
