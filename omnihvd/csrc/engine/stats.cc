#include "engine/stats.h"

#include <deque>
#include <iomanip>
#include <mutex>
#include <sstream>

#include "base/log.h"
#include "base/plugin.h"
#include "engine/trace.h"

namespace omnihvd {
namespace {

std::mutex passes_mutex;
std::map<Reason, Pass>& all_passes() {
  static auto* passes = new std::map<Reason, Pass>;  // outlives every thread that counts
  return *passes;
}

constexpr size_t kMostCalls = 4096;
std::atomic<bool> calls_kept{false};
std::mutex calls_mutex;  // guards calls() and the totals at the end of the last
std::deque<PastCall>& calls() {
  static auto* calls = new std::deque<PastCall>;
  return *calls;
}

void keep_call(Way way, uint64_t bytes, std::chrono::steady_clock::time_point begun) {
  static PastCall before{};  // the totals at the previous call
  const Stats& s = stats();
  std::lock_guard lock(calls_mutex);
  const PastCall now{way,
                     bytes,
                     begun,
                     std::chrono::steady_clock::now(),
                     s.bytes_sent + s.library_bytes,
                     s.blocks,
                     s.nonzero_blocks,
                     s.result_blocks};
  PastCall call = now;
  call.bytes_sent -= before.bytes_sent;
  call.blocks -= before.blocks;
  call.nonzero_blocks -= before.nonzero_blocks;
  call.result_blocks -= before.result_blocks;
  before = now;
  if (calls().size() == kMostCalls) calls().pop_front();
  calls().push_back(call);
}

// By rank. Pages in which nobody has counted take no memory.
constexpr size_t kMostRanks = 1 << 16;
std::atomic<uint64_t> lasts[kMostRanks];

}  // namespace

Stats& stats() {
  static auto* stats = new Stats;
  return *stats;
}

void count_way(Way way, uint64_t bytes, std::chrono::steady_clock::time_point begun) {
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begun;
  WayStats& counts = stats().ways[static_cast<size_t>(way)];
  counts.calls += 1;
  counts.bytes += bytes;
  counts.nanoseconds += static_cast<uint64_t>(time.count());
  if (calls_kept) keep_call(way, bytes, begun);
  if (tracing()) trace({name_of(way), begun, begun + time, {{{"bytes", bytes}}}});
}

void keep_calls() { calls_kept = true; }

std::vector<PastCall> take_calls() {
  std::lock_guard lock(calls_mutex);
  std::vector<PastCall> taken(calls().begin(), calls().end());
  calls().clear();
  return taken;
}

void count_last(uint32_t rank) {
  if (rank < kMostRanks) lasts[rank].fetch_add(1, std::memory_order_relaxed);
}

std::map<uint32_t, uint64_t> last_ranks() {
  std::map<uint32_t, uint64_t> found;
  for (uint32_t rank = 0; rank < kMostRanks; ++rank)
    if (const uint64_t rounds = lasts[rank]) found[rank] = rounds;
  return found;
}

void count_pass(Reason reason, uint64_t bytes) {
  std::lock_guard lock(passes_mutex);
  Pass& pass = all_passes()[reason];
  ++pass.calls;
  pass.bytes += bytes;
}

std::map<Reason, Pass> passes() {
  std::lock_guard lock(passes_mutex);
  return all_passes();
}

namespace {

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// "; 17 over shared memory, 2 whole by MPI". Empty if all were streamed.
void add_ways(std::ostringstream& text, const char* original, uint64_t calls) {
  const Stats& s = stats();
  const std::string by = std::string(" by ") + original;
  const std::string how[] = {" streamed",
                             " over shared memory",
                             by + " on the union of blocks",
                             " whole" + by,
                             " streamed without loss by the codec",
                             " through an in-network aggregator",
                             " by " + plugin_way()};
  if (s.ways[size_t(Way::stream)].calls == calls) return;
  const char* between = "; ";
  for (const Way way : kCountedWays) {
    const uint64_t made = s.ways[size_t(way)].calls;
    if (made == 0) continue;
    text << between << made << how[size_t(way) - size_t(Way::stream)];
    between = ", ";
  }
}

struct Taken {
  uint64_t calls = 0, bytes = 0, nanoseconds = 0;
};

Taken taken() {
  Taken sum;
  for (const WayStats& way : stats().ways) {
    sum.calls += way.calls;
    sum.bytes += way.bytes;
    sum.nanoseconds += way.nanoseconds;
  }
  return sum;
}

struct Left {
  uint64_t calls = 0;
  double share = 0;  // of all bytes
  std::string reasons;
};

Left left_alone(uint64_t taken_bytes) {
  Left left;
  uint64_t bytes = 0;
  for (const auto& [reason, pass] : passes()) {
    if (reason == Reason::control) continue;
    left.calls += pass.calls;
    bytes += pass.bytes;
    left.reasons +=
        (left.reasons.empty() ? "" : ", ") + std::to_string(pass.calls) + ' ' + name_of(reason);
  }
  left.share = percent(double(bytes), double(bytes + taken_bytes));
  return left;
}

std::ostringstream percents() {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  return text;
}

// The factor by which tensors grow if sparse gradients' rows that no rank has count, too, as in
// omnihvd/statistics.py.
double growth(const Taken& sums) {
  const RowStats& rows = stats().rows;
  const auto summed = static_cast<double>(sums.bytes);
  return summed > 0 ? 1 + double(rows.dense_bytes - rows.union_bytes) / summed : 1;
}

// "sums taken: 120, of 7068.0 MB; sent 9.8% of a ring; 12.3 s". Over shared memory nothing is sent:
// it says what the busiest rank would send.
std::string headline(const Taken& sums) {
  const Stats& s = stats();
  auto text = percents();
  text << "sums taken: " << sums.calls;
  if (sums.calls > 0) {
    const bool shared = s.ways[size_t(Way::shared)].calls > 0;
    const uint64_t sent = s.bytes_sent + s.library_bytes + s.between_hosts_bytes;
    const double all = growth(sums);
    text << ", of " << double(sums.bytes) * all / 1e6 << " MB; "
         << (shared ? "would send " : "sent ") << percent(double(sent), double(s.ring_bytes) * all)
         << "% of a ring" << (shared ? " between hosts; " : "; ") << double(sums.nanoseconds) / 1e9
         << " s";
  }
  if (s.failures > 0) text << "; " << s.failures << " failed";
  return text.str();
}

// "; sent 691.2 MB; non-zero blocks: ...; left to MPI: 33, 0.1% of the bytes (30 small, 3 dtype)"
std::string details(const char* original, const Taken& sums, const Left& left) {
  const Stats& s = stats();
  auto text = percents();
  if (sums.calls > 0) {
    text << "; sent " << double(s.bytes_sent + s.library_bytes) / 1e6 << " MB";
    const double blocks = double(s.blocks) * growth(sums);
    if (blocks > 0)  // blocks were inspected
      text << "; non-zero blocks: " << percent(double(s.nonzero_blocks), blocks) << "% here, "
           << percent(double(s.result_blocks), blocks) << "% on any rank";
    add_ways(text, original, sums.calls);
  }
  if (left.calls > 0)
    text << "; left to " << original << ": " << left.calls << ", " << left.share
         << "% of the bytes (" << left.reasons << ')';
  return text.str();
}

}  // namespace

std::string summary(const char* original) {
  const Taken sums = taken();
  return headline(sums) + details(original, sums, left_alone(sums.bytes));
}

void log_summary(const char* original) {
  constexpr double kMuch = 5;  // percent of the bytes
  static std::once_flag once;
  if (!stats().process.is_this()) return;
  std::call_once(once, [original] {
    const Taken sums = taken();
    const Left left = left_alone(sums.bytes);
    auto much = percents();
    if (left.share >= kMuch) much << "; left to " << original << ": " << left.share << '%';
    // All ranks are alike: one short line for the job; the info level shows more.
    if (log_rank() == 0 && sums.calls > 0 && !log_enabled(LogLevel::info))
      log(LogLevel::notice, headline(sums), much.str());
    log(LogLevel::info, summary(original));
    write_trace();
  });
}

}  // namespace omnihvd
