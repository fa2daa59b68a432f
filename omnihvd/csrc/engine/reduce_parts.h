// The reduces that make up a reduce-scatter, one to each rank that gets anything: reports when all
// have ended.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/session.h"

namespace omnihvd {

class ReduceParts {
 public:
  // done: called when the last of so many reduces has ended, with the first failure.
  ReduceParts(size_t parts, Group::Done done) : left_(parts), done_(std::move(done)) {}

  // Reports the end of one reduce; any thread.
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
