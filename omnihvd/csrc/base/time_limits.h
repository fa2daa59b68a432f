// Time limits, in seconds, that two sides share or a text tells. Python has the table as
// `session.time_limits()`, and the documents show its values (tests/session/test_time_limits.py).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace omnihvd {

struct TimeLimit {
  const char* name;
  double seconds;  // a whole number
  std::string text() const { return std::to_string(int(seconds)) + " s"; }
  constexpr uint64_t microseconds() const { return uint64_t(seconds * 1e6); }
  constexpr auto duration() const { return std::chrono::milliseconds(int64_t(seconds * 1e3)); }
};

// Bootstrap, unless OMNIHVD_JOIN_TIMEOUT is set: warnings, and ends of waits.
constexpr TimeLimit kJoinWarning{"join_warning", 3};
constexpr TimeLimit kJoinRoll{"join_roll", 10};         // who runs omnihvd, under Horovod on MPI
constexpr TimeLimit kJoin{"join", 60};                  // all other waits under Horovod, PyTorch
constexpr TimeLimit kJoinProgram{"join_program", 600};  // waits of other MPI programs
constexpr TimeLimit kJoinCheck{"join_check", 120};      // of `omnihvd check --job`
constexpr TimeLimit kRendezvous{"rendezvous", 20};      // each answer of an aggregator, or worker
constexpr TimeLimit kFlush{"flush", 5};                 // last messages of a transport that closes
constexpr TimeLimit kUdpFirst{"udp_first", 15};         // the first answer of a peer
constexpr TimeLimit kUdpSilence{"udp_silence", 30};     // of a peer that has answered before
constexpr TimeLimit kAggregator{"aggregator", 15};      // silence of an in-network aggregator
constexpr TimeLimit kStop{"stop", 2};                   // a longer step of a clock: was stopped
constexpr TimeLimit kTimeLimits[] = {kJoinWarning, kJoinRoll,   kJoin,  kJoinProgram,
                                     kJoinCheck,   kRendezvous, kFlush, kUdpFirst,
                                     kUdpSilence,  kAggregator, kStop};

}  // namespace omnihvd
