#include "protocol/seats.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "numeric/codec.h"

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

// Parses words such as "16x16".
std::vector<uint32_t> fans_in(const std::string& levels) {
  std::vector<uint32_t> fans;
  std::istringstream in(levels);
  for (std::string word; std::getline(in, word, 'x');) {
    const bool digits = word.find_first_not_of("0123456789") == std::string::npos;
    if (word.empty() || word.size() > 8 || !digits || std::stoul(word) < 2)
      throw Error("not allowed");
    fans.push_back(uint32_t(std::stoul(word)));
  }
  if (fans.empty() || levels.back() == 'x') throw Error("not allowed");
  return fans;
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

std::vector<uint32_t> fans_of(const std::string& levels, uint32_t ranks, uint32_t dedicated) {
  if (levels == "auto")
    return dedicated ? std::vector<uint32_t>{std::max(2u, ranks)}
                     : Tree::fans_for(ranks, Seats::kMostPeers);
  const std::vector<uint32_t> all = fans_in(levels);
  std::vector<uint32_t> fans;
  uint64_t groups = ranks;
  for (size_t i = 0; i < all.size() && (i == 0 || groups > 1); ++i) {
    fans.push_back(all[i]);
    groups = (groups + all[i] - 1) / all[i];
  }
  if (groups > 1)
    throw Error("OMNIHVD_LEVELS=" + levels + " leaves " + std::to_string(groups) + " groups of " +
                std::to_string(ranks) + " ranks apart: join more on a level, or let it be auto");
  return fans;
}

Seats::Seats(uint32_t ranks, uint32_t dedicated, const std::vector<uint32_t>& fans)
    : ranks_(ranks), dedicated_(dedicated), fan_(fans.empty() ? 0 : fans[0]), tree_(ranks, fans) {}

uint32_t Seats::shares(uint64_t windows) const {
  if (dedicated_) return dedicated_;
  if (levels() == 1) return ranks_;
  return uint32_t(std::min<uint64_t>(ranks_, fan_ * std::max<uint64_t>(1, windows / fan_)));
}

uint32_t Seats::host(const Seat& seat, uint32_t node) const {
  if (dedicated_ && seat.level == levels()) return ranks_ + seat.share;
  return tree_.host(seat.level, tree_.group_of(seat.level, rank_of(node)), seat.share);
}

uint32_t Seats::chance_of(uint32_t level, uint32_t node) const {
  return kSums - (level << 24) - tree_.group_of(level, rank_of(node));
}

std::vector<uint32_t> Seats::peers(uint32_t node) const {
  std::set<uint32_t> found;
  const uint32_t shares = most_shares();
  for (uint32_t share = 0; share < shares; ++share) {
    bool is_member = node < ranks_;
    for (uint32_t level = node < ranks_ ? 1 : levels(); level <= levels(); ++level) {
      const uint32_t above = host({level, share}, node);
      if (is_member) found.insert(above);
      is_member = above == node;
      for (uint32_t m = 0; is_member && m < members(level, node); ++m)
        found.insert(host_of_member({level, share}, node, m));
    }
  }
  found.erase(node);
  return {found.begin(), found.end()};
}

Seat Seats::at(uint64_t number) const {
  const uint64_t shares = most_shares();
  if (number >= shares * levels()) throw Error("malformed message: no such aggregator");
  return {uint32_t(number / shares) + 1, uint32_t(number % shares)};
}

}  // namespace omnihvd
