#include "protocol/tree.h"

#include <string>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr uint32_t kMostRanks = 1u << 24;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// The smallest fan-out with which so many equal levels cover the ranks.
uint32_t least_fan(uint32_t ranks, uint32_t levels) {
  for (uint32_t fan = 2;; ++fan) {
    uint64_t span = 1;
    for (uint32_t level = 0; level < levels && span < ranks; ++level) span *= fan;
    if (span >= ranks) return fan;
  }
}

}  // namespace

Tree::Tree(uint32_t ranks, const std::vector<uint32_t>& fans)
    : groups_{ranks}, fans_{1}, spans_{1} {
  if (ranks == 0 || ranks > kMostRanks)
    throw Error("a tree of " + std::to_string(ranks) + " ranks");
  for (const uint32_t fan : fans) {
    if (ranks == 1) break;
    if (fan < 2) throw Error("a level joins at least 2");
    if (groups_.back() == 1)
      throw Error("levels above one that joins all " + std::to_string(ranks) + " ranks");
    const uint32_t before = groups_.back();
    groups_.push_back(ceil_div(before, fan));
    fans_.push_back(ceil_div(before, groups_.back()));
    spans_.push_back(spans_.back() * fans_.back());
  }
  if (ranks == 1 && !fans.empty()) groups_ = fans_ = spans_ = {1, 1};
  if (groups_.back() > 1 || fans.empty())
    throw Error("levels that leave " + std::to_string(groups_.back()) + " groups of " +
                std::to_string(ranks) + " ranks apart");
}

std::vector<uint32_t> Tree::fans_for(uint32_t ranks, uint32_t peers) {
  uint32_t levels = 1;
  for (uint32_t fan = ranks; fan > 2 && uint64_t(levels) * (fan - 1) > peers;)
    fan = least_fan(ranks, ++levels);
  std::vector<uint32_t> fans;
  for (uint32_t left = ranks; levels > 0; --levels) {
    fans.push_back(least_fan(left, levels));
    left = ceil_div(left, fans.back());
  }
  return fans;
}

uint32_t Tree::group_of(uint32_t level, uint32_t rank) const {
  uint64_t group = rank;
  for (uint32_t k = 1; k <= level; ++k) group = ((group + 1) * groups_[k] - 1) / groups_[k - 1];
  return uint32_t(group);
}

// If a group has fewer members than others, neighbouring shares go to one member: so it speaks with
// one or two of each other group, not with all.
uint32_t Tree::host(uint32_t level, uint32_t group, uint32_t share) const {
  for (; level > 0; --level) {
    const uint64_t digit = share / spans_[level - 1] % fans_[level];
    group = first(level, group) + uint32_t(digit * members(level, group) / fans_[level]);
  }
  return group;
}

}  // namespace omnihvd
