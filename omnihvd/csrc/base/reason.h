// The fallback reason: why the original library makes a sum. It is counted, shown in summaries, and
// a key of omnihvd.stats()["passed"].
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// clang-format off
enum class Reason : uint8_t {
  none,  // no fallback: omnihvd makes the sum
  // From the arguments. control: not a sum, but how Horovod's ranks agree on what to reduce next.
  // layout: a tensor's memory layout, or Horovod's objects, are not as expected.
  invalid, empty, op, control, dtype, layout, large, inter_communicator, captured, simulated,
  // From the ranks and their settings. levels: a reduce-scatter where the sums take two levels, or
  // where the aggregators form a tree or are not ranks. rows: a sparse tensor, of rows that few
  // ranks share.
  one_rank, disabled, small, device_memory, several_ranks_in_a_process, one_host, original,
  levels, rows,
  // Under NCCL: what is missing on some rank.
  kernels, memory,
};
constexpr const char* kReasonNames[] = {
  "taken",
  "invalid", "empty", "op", "control", "dtype", "layout", "large", "inter-communicator", "captured",
  "simulated",
  "one rank", "disabled", "small", "device memory", "several ranks in a process", "one host",
  "original", "levels", "rows",
  "kernels", "memory",
};
// clang-format on
constexpr size_t kReasons = sizeof kReasonNames / sizeof *kReasonNames;
static_assert(kReasons == static_cast<size_t>(Reason::memory) + 1, "a name for each");

constexpr const char* name_of(Reason reason) { return kReasonNames[static_cast<size_t>(reason)]; }

}  // namespace omnihvd
