// Sums by streaming non-zero blocks through the engine's aggregators (protocol/worker.h).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/scratch.h"

namespace omnihvd {

// One thread at a time.
class Streamed : public Algorithm {
 public:
  explicit Streamed(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  SumMade run(const Call& call, Library& library) override;
  void set_timeout(double seconds) override { group_->set_timeout(seconds); }
  void fail(const std::string& why) override { group_->fail(why); }
  std::shared_ptr<Group> group() const override { return group_; }

 private:
  const std::shared_ptr<Group> group_;
  Scratch scratch_;
};

constexpr Way streamed_way(const Codec& codec) {
  return codec.kind == CodecKind::lossless ? Way::coded : Way::stream;
}

}  // namespace omnihvd
