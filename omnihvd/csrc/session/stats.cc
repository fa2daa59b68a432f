#include "session/stats.h"

#include <mutex>

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

}  // namespace omnihvd
