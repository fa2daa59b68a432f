#include "session/stats.h"

#include <iomanip>
#include <mutex>
#include <sstream>

#include "base/log.h"

namespace omnihvd {
namespace {

std::mutex passes_mutex;
std::map<std::string, Pass>& all_passes() {
  static auto* passes = new std::map<std::string, Pass>;  // outlives every thread that counts
  return *passes;
}

}  // namespace

Stats& stats() {
  static auto* stats = new Stats;
  return *stats;
}

void count_pass(const std::string& reason, uint64_t bytes) {
  std::lock_guard lock(passes_mutex);
  Pass& pass = all_passes()[reason];
  ++pass.calls;
  pass.bytes += bytes;
}

std::map<std::string, Pass> passes() {
  std::lock_guard lock(passes_mutex);
  return all_passes();
}

namespace {

// "allreduce: 120 taken: 3200.0 MB, 84.1 MB sent, ...; left to MPI: 12 small, 30 op"
std::string summary(const char* original) {
  const Stats& s = stats();
  const auto megabytes = [](uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "allreduce: " << s.calls
       << " taken: " << megabytes(s.bytes_in) << " MB, " << megabytes(s.bytes_sent) << " MB sent, "
       << megabytes(s.bytes_received) << " MB received, " << s.nonzero_blocks << " of " << s.blocks
       << " blocks non-zero, " << static_cast<double>(s.nanoseconds) / 1e9 << " s";
  if (s.failures > 0) text << ", " << s.failures << " failed";
  std::string separator = std::string("; left to ") + original + ": ";
  for (const auto& [reason, pass] : passes()) {
    text << separator << pass.calls << ' ' << reason;
    separator = ", ";
  }
  return text.str();
}

}  // namespace

void log_summary(const char* original) {
  static std::once_flag once;
  std::call_once(once, [original] { log(LogLevel::info, summary(original)); });
}

}  // namespace omnihvd
