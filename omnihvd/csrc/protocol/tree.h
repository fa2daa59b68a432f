// Which rank sums what for whom if aggregators form a tree over the ranks (levels of hosts, racks,
// ...): closed-form arithmetic, the same on every rank, so that no table travels.
//
//   group     on level k: consecutive groups of level k - 1, at most the level's fan-out; on level
//             0: a rank; on the last: all. Group sizes of a level differ by at most one
//   members   those groups
//   share     the part that one aggregator of a flat group would sum (layout.h). Each group has an
//             aggregator for each share, on one of its ranks, and different ranks take different
//             shares: this spreads work and bytes as reduce-scatters would, one level after another
//
// On level k a rank speaks only with ranks of its own group: with fan - 1 if the fan-outs multiply
// to the number of ranks, as those differ from it in one digit; else with up to some times as many.
#pragma once

#include <cstdint>
#include <vector>

namespace omnihvd {

class Tree {
 public:
  // fans: the most members of a group, from the first level on. Throws Error if there are no ranks,
  // a fan-out is below 2, or the last level has several groups.
  Tree(uint32_t ranks, const std::vector<uint32_t>& fans);

  // The fewest levels, with about equal fan-outs, for which a rank has at most `peers` peers; or
  // fan-outs of 2. One rank: one level.
  static std::vector<uint32_t> fans_for(uint32_t ranks, uint32_t peers);

  uint32_t levels() const { return uint32_t(groups_.size()) - 1; }
  uint32_t group_of(uint32_t level, uint32_t rank) const;
  // Members of a group, numbered from 0. A rank belongs to the one at member_of(level, rank).
  uint32_t members(uint32_t level, uint32_t group) const {
    return first(level, group + 1) - first(level, group);
  }
  uint32_t member_of(uint32_t level, uint32_t rank) const {
    return group_of(level - 1, rank) - first(level, group_of(level, rank));
  }
  // The rank that aggregates a share for a group; on level 0 the rank itself.
  uint32_t host(uint32_t level, uint32_t group, uint32_t share) const;
  // The same for the group's m-th member, on the level below.
  uint32_t host_of_member(uint32_t level, uint32_t group, uint32_t m, uint32_t share) const {
    return host(level - 1, first(level, group) + m, share);
  }

 private:
  uint32_t first(uint32_t level, uint32_t group) const {
    return uint32_t(uint64_t(group) * groups_[level - 1] / groups_[level]);
  }

  std::vector<uint32_t> groups_;  // [level]: how many groups; on level 0, ranks
  std::vector<uint32_t> fans_;    // [level]: the most members; [0]: 1
  std::vector<uint32_t> spans_;   // [level]: the product of the fan-outs up to this level
};

}  // namespace omnihvd
