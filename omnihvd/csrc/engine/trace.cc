#include "engine/trace.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"

namespace omnihvd {
namespace {

constexpr size_t kMost = 1 << 16;  // spans per thread

struct Ring {
  std::mutex mutex;
  std::vector<Span> spans;
  uint64_t written = 0;
};

std::mutex rings_mutex;
std::vector<std::shared_ptr<Ring>>& rings() {
  static auto* all = new std::vector<std::shared_ptr<Ring>>;  // outlives every thread
  return *all;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The file of a rank; rank 0's is the one named. With Horovod's Timeline alone: beside that file,
// for merging into it (omnihvd/observe/traces.py).
std::string path_for(int rank) {
  std::string own = variable("OMNIHVD_TRACE");
  if (own.empty()) return rank == 0 ? variable("HOROVOD_TIMELINE") + ".omnihvd" : "";
  if (rank == 0) return own;
  const std::string number = ".rank-" + std::to_string(rank);
  const size_t dot = own.rfind('.');
  const bool has_suffix = dot != std::string::npos && own.find('/', dot) == std::string::npos;
  return has_suffix ? own.substr(0, dot) + number + own.substr(dot) : own + number;
}

const TraceClock::time_point start = TraceClock::now();
const int64_t start_epoch_us = std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count();

double microseconds(TraceClock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

void write(std::ostream& file, int rank, size_t thread, Ring& ring) {
  const std::lock_guard<std::mutex> lock(ring.mutex);
  for (const Span& span : ring.spans) {
    file << ",\n{\"name\":\"" << span.name << "\",\"ph\":\"X\",\"pid\":" << rank
         << ",\"tid\":" << thread << ",\"ts\":" << microseconds(span.begin - start)
         << ",\"dur\":" << std::max(0.0, microseconds(span.end - span.begin)) << ",\"args\":{";
    const char* comma = "";
    for (const Span::Value& value : span.values) {
      if (!value.name) continue;
      file << comma << '"' << value.name << "\":" << value.value;
      comma = ",";
    }
    file << "}}";
  }
}

void write_file(const std::string& path, int rank) {
  std::ofstream file(path, std::ios::trunc);
  file.precision(3);
  file << std::fixed << "[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" << rank
       << ",\"args\":{\"name\":\"omnihvd rank " << rank << " (" << host_name()
       << ")\",\"start_time_since_epoch_in_micros\":" << start_epoch_us << "}}";
  uint64_t lost = 0;
  const std::lock_guard<std::mutex> lock(rings_mutex);
  for (size_t i = 0; i < rings().size(); ++i) {
    write(file, rank, i, *rings()[i]);
    lost += rings()[i]->written - rings()[i]->spans.size();
  }
  file << "]\n";
  file.flush();
  if (!file) {
    log(LogLevel::warning, "the trace could not be written to ", path, ": ", std::strerror(errno));
    struct stat status{};
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) unlink(path.c_str());
  }
  if (lost > 0) log(LogLevel::notice, "the trace lacks its first ", lost, " spans");
}

}  // namespace

bool tracing() {
  static const bool on = [] {
    const std::string timeline = variable("HOROVOD_TIMELINE");
    return !variable("OMNIHVD_TRACE").empty() || (!timeline.empty() && timeline != "DYNAMIC");
  }();
  return on;
}

void trace(const Span& span) {
  thread_local const std::shared_ptr<Ring> mine = [] {
    auto ring = std::make_shared<Ring>();
    const std::lock_guard<std::mutex> lock(rings_mutex);
    rings().push_back(ring);
    return ring;
  }();
  const std::lock_guard<std::mutex> lock(mine->mutex);
  if (mine->spans.size() < kMost)
    mine->spans.push_back(span);
  else
    mine->spans[mine->written % kMost] = span;
  ++mine->written;
}

void write_trace() {
  if (!tracing()) return;
  static std::once_flag once;
  std::call_once(once, [] {
    const int rank = std::max(0, log_rank());
    const std::string path = path_for(rank);
    if (!path.empty()) write_file(path, rank);
  });
}

}  // namespace omnihvd
