#include "session/stats.h"

#include <algorithm>
#include <deque>
#include <iomanip>
#include <mutex>
#include <sstream>

#include "base/log.h"
#include "session/trace.h"

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
  static PastCall before{};  // totals
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

// By rank. Pages of memory that nobody counted in are none.
constexpr size_t kMostRanks = 1 << 16;
std::atomic<uint64_t> lasts[kMostRanks];
std::atomic<uint32_t> lasts_end{0};  // no rank from here on was counted

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
  if (rank >= kMostRanks) return;
  lasts[rank].fetch_add(1, std::memory_order_relaxed);
  uint32_t end = lasts_end.load(std::memory_order_relaxed);
  while (end <= rank &&
         !lasts_end.compare_exchange_weak(end, rank + 1, std::memory_order_relaxed)) {
  }
}

std::map<uint32_t, uint64_t> last_ranks() {
  std::map<uint32_t, uint64_t> found;
  for (uint32_t rank = 0; rank < lasts_end; ++rank)
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

// "; 17 over shared memory, 2 whole by MPI; between hosts about 42% of a ring". Nothing where all
// were streamed, of which all has been said.
void add_ways(std::ostringstream& text, const char* original, uint64_t calls) {
  const Stats& s = stats();
  const std::string by = std::string(" by ") + original;
  const std::string how[] = {" streamed",
                             " over shared memory",
                             by + " on the union of blocks",
                             " whole" + by,
                             " streamed without loss by the codec",
                             " through an aggregator in the data path"};
  if (s.ways[size_t(Way::stream)].calls == calls) return;
  const char* between = "; ";
  for (const Way way : kCountedWays) {
    const uint64_t made = s.ways[size_t(way)].calls;
    if (made == 0) continue;
    text << between << made << how[size_t(way) - size_t(Way::stream)];
    between = ", ";
  }
  if (s.ways[size_t(Way::shared)].calls == 0 || s.blocks == 0) return;
  // What is not zero travels, here and back, less what codecs save.
  const auto ring = static_cast<double>(s.ring_bytes);
  const auto moved = static_cast<double>(s.nonzero_blocks + s.result_blocks) /
                     (2 * static_cast<double>(s.blocks)) * ring;
  const auto saved = static_cast<double>(s.codecs.plain_bytes - s.codecs.bytes);
  text << "; between hosts about " << percent(std::max(moved - saved, 0.0), ring) << "% of a ring";
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

// "; left to MPI: 33, 0.1% of the bytes (30 small, 3 dtype)"
void add_passes(std::ostringstream& text, const char* original, uint64_t taken_bytes) {
  Pass all;
  std::string reasons;
  for (const auto& [reason, pass] : passes()) {
    if (reason == Reason::control) continue;
    all.calls += pass.calls;
    all.bytes += pass.bytes;
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(pass.calls) + ' ' + name_of(reason);
  }
  if (all.calls == 0) return;
  const auto bytes = static_cast<double>(all.bytes);
  text << "; left to " << original << ": " << all.calls << ", "
       << percent(bytes, bytes + static_cast<double>(taken_bytes)) << "% of the bytes (" << reasons
       << ')';
}

}  // namespace

// "sums taken: 120, of 7068.0 MB; sent 691.2 MB, 9.8% of what a ring sends; non-zero blocks: ..."
// Sparse gradients count with all their rows, as in omnihvd/statistics.py.
std::string summary(const char* original) {
  const Stats& s = stats();
  const Taken sums = taken();
  const auto bytes = static_cast<double>(sums.bytes);
  const auto left_out = static_cast<double>(s.rows.dense_bytes - s.rows.union_bytes);
  const double growth = bytes > 0 ? (bytes + left_out) / bytes : 1;
  const auto sent = static_cast<double>(s.bytes_sent + s.library_bytes);
  const auto blocks = static_cast<double>(s.blocks) * growth;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "sums taken: " << sums.calls;
  if (sums.calls > 0) {
    text << ", of " << (bytes + left_out) / 1e6 << " MB; sent " << sent / 1e6 << " MB, "
         << percent(sent, static_cast<double>(s.ring_bytes) * growth)
         << "% of what a ring sends; non-zero blocks: "
         << percent(static_cast<double>(s.nonzero_blocks), blocks) << "% here, "
         << percent(static_cast<double>(s.result_blocks), blocks) << "% on any rank";
    add_ways(text, original, sums.calls);
    text << "; " << static_cast<double>(sums.nanoseconds) / 1e9 << " s";
  }
  if (s.failures > 0) text << "; " << s.failures << " failed";
  add_passes(text, original, sums.bytes);
  return text.str();
}

void log_summary(const char* original) {
  static std::once_flag once;
  if (!stats().process.is_this()) return;
  std::call_once(once, [original] {
    // All ranks are alike: one line for the job, more for those who ask.
    const bool for_all = log_rank() == 0 && taken().calls > 0;
    log(for_all ? LogLevel::notice : LogLevel::info, summary(original));
    write_trace();
  });
}

}  // namespace omnihvd
