// One allreduce of this process, or one reduce of a reduce-scatter, shared by the progress threads
// that carry it.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "engine/collective_parts.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "protocol/layout.h"

namespace omnihvd {

using Clock = SessionClock;

class Collective {
 public:
  // Counts itself, except for calls and failures of reduces: a reduce-scatter is one call.
  Collective(uint64_t sequence, const Shape& shape, uint32_t ranks, uint32_t streams,
             Group::MakeTensor make_tensor, Group::Done done, bool counted);

  const uint64_t sequence;
  const Layout layout;
  const Clock::time_point begun;
  const Group::MakeTensor make_tensor;  // each progress thread makes its own, over the same memory

  // Each progress thread calls this once; the last one reports to the caller.
  void stream_done(const std::string* failure, uint64_t nonzero_blocks, uint64_t result_blocks);

 private:
  Stats& stats_;
  CollectiveParts parts_;  // one for each progress thread
};

}  // namespace omnihvd
