// Out-of-band allgather for the bootstrap of a process set. It uses Horovod's own Gloo, with Gloo's
// time-out (HOROVOD_GLOO_TIMEOUT_SECONDS).
#pragma once

#include <string>
#include <vector>

#include "engine/session.h"
#include "intercept/gloo/horovod.h"

namespace omnihvd {

// Runs on the process set's own context, inside an allreduce on it, when Horovod begins no other
// collective.
class GlooExchange : public Exchange {
 public:
  GlooExchange(const HorovodLibrary& library, GlooContext* context);
  std::vector<std::string> allgather(const std::string& mine) override;

 private:
  // lengths: in bytes, none 0. Returns all ranks' bytes, concatenated.
  std::string gather(const std::string& mine, std::vector<int> lengths) const;
  // Names the nearest rank from which nothing has come. all: the result of gather(), as far as it
  // arrived.
  std::string first_missing(const std::string& all, const std::vector<int>& lengths) const;

  const HorovodLibrary& library_;
  GlooContext* const context_;
};

}  // namespace omnihvd
