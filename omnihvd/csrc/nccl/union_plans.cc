#include "nccl/union_plans.h"

#include <algorithm>

namespace omnihvd {

std::optional<UnionCall> UnionPlans::next(uint64_t count, DType dtype) {
  const Key key{count, dtype, before_[0], before_[1]};
  const auto found = numbers_.find(key);
  const bool fresh = found == numbers_.end();
  const auto sum = static_cast<uint32_t>(fresh ? numbers_.size() : found->second);
  if (proposed_ && in_time_ && proposed_->from <= calls_ &&
      std::any_of(proposed_->changes.begin(), proposed_->changes.end(),
                  [sum](const UnionChange& change) { return change.sum == sum; }))
    return std::nullopt;
  before_[1] = before_[0];
  before_[0] = count;
  const uint64_t number = calls_++;
  if (sum >= kMost) return UnionCall{number, kNone, 0, false, false};
  if (known_.size() <= sum) known_.resize(sum + 1);
  Known& known = known_[sum];
  if (fresh) {  // other ranks may have reached it long ago and changed its plan
    numbers_.emplace(key, sum);
    known.plans.push_front({0, whole_ ? (count + block_size_ - 1) / block_size_ : 0, two_levels_});
  }
  while (known.plans.size() > 1 && known.plans[1].from <= number) known.plans.pop_front();
  const Plan& plan = known.plans.front();
  const uint64_t call = known.calls++, capacity = plan.capacity;
  const bool look = capacity > 0 || call == 1 || call == 2 || call % kBetween == kBetween - 1;
  return UnionCall{number, sum, capacity, look, capacity > 0 && plan.two_levels};
}

bool UnionPlans::vote(const UnionProposal& proposal) {
  proposed_ = proposal;
  in_time_ = calls_ <= proposal.from;
  return in_time_;
}

void UnionPlans::count_votes(bool all_in_time) {
  if (proposed_ && all_in_time) {
    for (const UnionChange& change : proposed_->changes) {
      if (known_.size() <= change.sum) known_.resize(change.sum + 1);
      known_[change.sum].plans.push_back({proposed_->from, change.capacity, change.two_levels});
    }
  }
  proposed_.reset();
}

}  // namespace omnihvd
