// What was reduced, and what was not, in this process since its start. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace omnihvd {

// How a sum is made that omnihvd could take.
enum class Way {
  stream,           // non-zero blocks through aggregators
  union_of_blocks,  // the blocks that are non-zero on any rank, by the original library
  original,         // the call as it stood, by the original library
};

struct Stats {
  std::atomic<uint64_t> calls{0};           // allreduces taken by omnihvd
  std::atomic<uint64_t> failures{0};        // of them, those that ended in an Error
  std::atomic<uint64_t> bytes_in{0};        // size of the tensors taken
  std::atomic<uint64_t> bytes_sent{0};      // to other processes, headers included
  std::atomic<uint64_t> bytes_received{0};  // from other processes, headers included
  std::atomic<uint64_t> messages_sent{0};
  std::atomic<uint64_t> blocks{0};            // blocks of the tensors taken
  std::atomic<uint64_t> nonzero_blocks{0};    // of them, non-zero on this rank
  std::atomic<uint64_t> result_blocks{0};     // of them, non-zero on any rank
  std::atomic<uint64_t> nanoseconds{0};       // from call to result, summed over calls
  std::atomic<uint64_t> messages_refused{0};  // strangers, wrong versions, malformed
};
Stats& stats();

// A call that went to the original library, and why ("op", "dtype", "small", ...).
void count_pass(const std::string& reason, uint64_t bytes);
struct Pass {
  uint64_t calls = 0;
  uint64_t bytes = 0;
};
std::map<std::string, Pass> passes();

// Logs, once in a process, what was reduced and what was left to the original library ("MPI"): to
// be called at its end.
void log_summary(const char* original);

}  // namespace omnihvd
