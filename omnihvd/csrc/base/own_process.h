// Remembers which process created an object.
#pragma once

#include <unistd.h>

#include "base/error.h"

namespace omnihvd {

// A forked child holds copies of our objects but none of their threads. It shares memory and
// connections with its parent, which goes on using them, so the child must not touch them.
class OwnProcess {
 public:
  // clang 14 requires an explicit constructor for const members.
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
