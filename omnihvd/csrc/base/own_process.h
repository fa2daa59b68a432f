// The process in which something was made.
#pragma once

#include <unistd.h>

#include "base/error.h"

namespace omnihvd {

// A child that was forked off has copies of our objects, but none of their threads, and shares
// memory and connections with its parent, which goes on with them. It leaves them alone.
class OwnProcess {
 public:
  // clang 14 needs a constructor that is written, for members that are const.
  OwnProcess() : pid_(getpid()) {}

  bool is_this() const { return getpid() == pid_; }
  void check() const {
    if (!is_this())
      throw Error(
          "this process was forked off a rank of a job, and has none of its connections: make "
          "sums in the rank itself, or start the process otherwise (multiprocessing: spawn)");
  }

 private:
  const pid_t pid_;
};

}  // namespace omnihvd
