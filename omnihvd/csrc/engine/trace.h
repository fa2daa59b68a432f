// A trace of the engine: spans, kept only if OMNIHVD_TRACE or HOROVOD_TIMELINE asks for them.
//
// Each thread has a ring of its own, which keeps the newest spans. At the end of a job they are
// written in Chrome's trace format (which Perfetto opens), with the clock of Horovod's Timeline:
// microseconds since a moment that the first entry gives, of CLOCK_MONOTONIC.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace omnihvd {

using TraceClock = std::chrono::steady_clock;

struct Span {
  struct Value {
    const char* name = nullptr;  // a string literal; null: none
    uint64_t value = 0;
  };
  const char* name;  // a string literal
  TraceClock::time_point begin, end;
  std::array<Value, 3> values = {};
};

// Constant from the process's start.
bool tracing();
// Keeps a span of this thread. Call only if tracing().
void trace(const Span& span);
// Writes the file of this rank, once; logs a warning if that fails. Any thread.
void write_trace();

}  // namespace omnihvd
