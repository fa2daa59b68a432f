// Tracks whether the receiver of a flow is still there: when to open the flow, when to ask, and
// when to give the receiver up. Pure: times are arguments, in microseconds in which the asking
// process was awake (base/awake_clock.h).
#pragma once

#include <cstdint>

#include "innetwork/refusals.h"

namespace omnihvd {

class DatagramPeer {
 public:
  enum class Say { nothing, open, probe, both };
  enum class End { none, refused, never_answered, silent, swallowed };

  explicit DatagramPeer(uint64_t now) : begun_at_(now), heard_at_(now), say_at_(now) {}

  void opened(uint64_t now);
  void heard(uint64_t now);
  void refused(uint64_t now);  // its host says that nobody listens at its port
  // The asking process was stopped, and perhaps the peer, too: the peer gets time to answer a
  // question asked now.
  void stopped(uint64_t now);

  // lives: the peer's process is known to live, so its silence means that it is stopped. time_outs:
  // of the sender, in a row; those of a peer that answers mean that full datagrams are lost.
  End end(uint64_t now, bool lives, uint32_t time_outs = 0);
  // The message to send now. Both: a silent peer may have forgotten the flow, and its answer to
  // another opening will tell.
  Say say(uint64_t now);
  uint64_t say_at() const { return say_at_; }  // when to look next

 private:
  bool is_open_ = false;
  uint64_t begun_at_, heard_at_, say_at_;
  uint32_t tries_ = 0;
  uint32_t excused_ = 0;  // time-outs in a row, when it last was silent
  Refusals refusals_;
};

}  // namespace omnihvd
