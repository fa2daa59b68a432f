// Lets some of a communicator's ranks make a group of their own.
#pragma once

#include <string>
#include <vector>

#include "engine/session.h"

namespace omnihvd {

// An out-of-band allgather among some ranks of a communicator, over that of all its ranks. All
// ranks must use theirs at the same time; parts may end, or fail, after different numbers of steps.
class PartExchange : public Exchange {
 public:
  PartExchange(Exchange& all,
               std::vector<int> members);  // ranks, ascending; this one is among them
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::vector<std::string> allgather(const std::string& mine) override;

  // Collective over all ranks: ends when all parts have ended. Throws Error on all ranks if one
  // failed.
  void finish(const std::string& failure);

 private:
  Exchange& all_;
  const std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace omnihvd
