// One allreduce of this process, or one reduce of a reduce-scatter, shared by the progress threads
// that carry it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "protocol/layout.h"

namespace omnihvd {

using Clock = SessionClock;

// The parts of a collective, which end apart: reports when all have ended. Progress threads carry a
// part each; a reduce-scatter is made of reduces, one to each rank that gets anything.
class CollectiveParts {
 public:
  // done: called when the last of so many parts has ended, with the first failure.
  CollectiveParts(size_t parts, Group::Done done) : left_(parts), done_(std::move(done)) {}

  // Reports the end of one part; any thread.
  void end(const std::string* failure, uint64_t united_blocks) {
    {
      const std::lock_guard lock(mutex_);
      united_blocks_ += united_blocks;
      if (failure && !failure_) failure_ = std::make_unique<std::string>(*failure);
      if (--left_ > 0) return;
    }
    done_(failure_.get(), united_blocks_);
  }

 private:
  std::mutex mutex_;
  size_t left_;
  uint64_t united_blocks_ = 0;
  std::unique_ptr<std::string> failure_;
  const Group::Done done_;
};

class Collective {
 public:
  // Counts itself, except for calls and failures of reduces: a reduce-scatter is one call.
  Collective(uint64_t sequence_number, const Shape& shape, uint32_t ranks, uint32_t streams,
             Group::MakeTensor make, Group::Done done, bool counted)
      : sequence(sequence_number),
        layout(shape),
        begun(Clock::now()),
        make_tensor(std::move(make)),
        stats_(counted ? stats() : unseen_),
        parts_(streams, [this, done = std::move(done)](const std::string* why, uint64_t united) {
          if (why) stats_.failures += !layout.shape().for_one();
          done(why, united);
        }) {
    const uint64_t bytes = shape.count * size_of(shape.dtype);
    stats_.calls += !shape.for_one();
    stats_.bytes_in += bytes;
    stats_.ring_bytes += ring_bytes(ranks, bytes, shape.for_one());
    stats_.blocks += shape.blocks();
  }

  const uint64_t sequence;
  const Layout layout;
  const Clock::time_point begun;
  const Group::MakeTensor make_tensor;  // each progress thread makes its own, over the same memory

  // Each progress thread calls this once; the last one reports to the caller.
  void stream_done(const std::string* failure, uint64_t nonzero_blocks, uint64_t result_blocks) {
    stats_.nonzero_blocks += nonzero_blocks;
    stats_.result_blocks += result_blocks;
    parts_.end(failure, result_blocks);
  }

 private:
  static inline Stats unseen_;  // counts for collectives that are not the caller's sums
  Stats& stats_;
  CollectiveParts parts_;  // one for each progress thread
};

}  // namespace omnihvd
