// The parts of a collective, which end apart: reports when all have ended. Progress threads carry a
// part each; a reduce-scatter is made of reduces, one to each rank that gets anything.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/session.h"

namespace omnihvd {

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

}  // namespace omnihvd
