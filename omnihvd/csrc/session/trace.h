// What the engine did when: spans, kept only if OMNIHVD_TRACE or HOROVOD_TIMELINE asks for them.
//
// Each thread has a ring of its own, in which the newest spans stay. At the end of a job they are
// written in Chrome's trace format (which Perfetto opens), with Horovod's Timeline's clock:
// microseconds since a moment that the first entry tells, of CLOCK_MONOTONIC.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace omnihvd {

using TraceClock = std::chrono::steady_clock;

struct Span {
  struct Value {
    const char* name = nullptr;  // a literal; null: none
    uint64_t value = 0;
  };
  const char* name;  // a literal
  TraceClock::time_point begin, end;
  std::array<Value, 3> values = {};
};

// Constant from the process's start.
bool tracing();
// Keeps it, of this thread. To be called only if tracing().
void trace(const Span& span);
// Writes the file of this rank, once; logs a warning if that cannot be. Any thread.
void write_trace();

}  // namespace omnihvd
