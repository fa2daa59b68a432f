// Statistics of this process since its start: sums and fallbacks. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/own_process.h"
#include "base/reason.h"
#include "base/way.h"

namespace omnihvd {

// Whole calls, with whole tensors, as the caller made them.
struct WayStats {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> nanoseconds{0};  // from call to result
};

// Gradients that are sparse tensors: the union of all ranks' rows is summed.
struct RowStats {
  std::atomic<uint64_t> gradients{0};
  std::atomic<uint64_t> own_bytes{0};       // rows of this rank, each once
  std::atomic<uint64_t> gathered_bytes{0};  // rows of all ranks, with their indices
  std::atomic<uint64_t> union_bytes{0};     // rows that any rank has: these are summed
  std::atomic<uint64_t> dense_bytes{0};     // all rows
};

// Elements that travelled under codecs, contributions and sums, once per receiver.
struct CodecStats {
  std::atomic<uint64_t> blocks{0};
  std::atomic<uint64_t> packed_blocks{0};  // blocks sent packed, as that was smaller
  std::atomic<uint64_t> plain_blocks{0};   // blocks that could not be coded: NaN, infinity
  std::atomic<uint64_t> bytes{0};          // of all blocks, as they travelled
  std::atomic<uint64_t> plain_bytes{0};    // of all blocks, as float32
};

// The counters of omnihvd.stats() that are one number each, under these names.
#define OMNIHVD_COUNTERS(X)                                                                     \
  X(calls)           /* sums taken */                                                           \
  X(reduce_scatters) /* whole calls that were reduce-scatters */                                \
  X(failures)        /* sums that ended in an Error */                                          \
  X(bytes_in)        /* size of their tensors */                                                \
  X(ring_bytes)      /* what a ring would have sent for all sums taken */                       \
  X(bytes_sent)      /* to other processes, headers included */                                 \
  X(library_bytes)   /* what a ring sends for the original library's sums */                    \
  /* For sums over shared memory: what the busiest rank would send if each had its own host. */ \
  X(between_hosts_bytes)                                                                        \
  X(bytes_received) /* from other processes, headers included */                                \
  X(messages_sent)                                                                              \
  X(frames_sent) /* each is about one slot */                                                   \
  /* Bytes that these sums copied from memory to memory, into messages and out of them, as they \
     travelled; without the kernel's copies, and without additions. */                          \
  X(bytes_copied)                                                                               \
  X(blocks)           /* blocks of their tensors */                                             \
  X(nonzero_blocks)   /* non-zero on this rank */                                               \
  X(result_blocks)    /* non-zero on any rank */                                                \
  X(messages_refused) /* strangers, wrong versions, malformed */

struct Stats {
  const OwnProcess process;                                   // the process that counts here
#define OMNIHVD_COUNTER(name) std::atomic<uint64_t> name{0};  // NOLINT(bugprone-macro-parentheses)
  OMNIHVD_COUNTERS(OMNIHVD_COUNTER)
#undef OMNIHVD_COUNTER
  std::array<WayStats, kWays> ways;  // [Way]
  RowStats rows;
  CodecStats codecs;
};
Stats& stats();

// Bytes that each of `ranks` ranks sends in a ring allreduce, or reduce-scatter, of so many bytes.
inline uint64_t ring_bytes(uint64_t ranks, uint64_t bytes, bool scatters = false) {
  return ranks < 2 ? 0 : 2 * bytes / ranks * (ranks - 1) / (scatters ? 2 : 1);
}

// Counts a call that has ended, by its algorithm.
void count_way(Way way, uint64_t bytes, std::chrono::steady_clock::time_point begun);

// Single calls, for those who follow them: kept from the first keep_calls() on, the newest 4096.
// Blocks and bytes are exact if calls come one after another, as Horovod's do.
struct PastCall {
  Way way;
  uint64_t bytes;
  std::chrono::steady_clock::time_point begun, ended;
  uint64_t bytes_sent, blocks, nonzero_blocks, result_blocks;
};
void keep_calls();
std::vector<PastCall> take_calls();  // calls kept since the last take_calls()

// Counts a streamed round of this process's aggregator in which this rank contributed last. Takes
// no lock: it always counts, and only `omnihvd top` reads it. Covers the first 65536 ranks.
void count_last(uint32_t rank);
std::map<uint32_t, uint64_t> last_ranks();

// Counts a fallback: a call that went to the original library, and why.
void count_pass(Reason reason, uint64_t bytes);
struct Pass {
  uint64_t calls = 0;
  uint64_t bytes = 0;
};
std::map<Reason, Pass> passes();

// One line: sums made here, and sums left to the original library ("MPI").
std::string summary(const char* original);
// Logs it once per process; call at its end. Rank 0 logs the first three numbers as a notice; at
// level info all ranks log the whole line.
void log_summary(const char* original);

}  // namespace omnihvd
