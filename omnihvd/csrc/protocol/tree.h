// Which rank sums what for whom, where aggregators are a tree over the ranks (levels of hosts,
// racks, ...): closed-form arithmetic, the same on every rank, so that no table travels.
//
//   group     on level k consecutive groups of level k - 1, at most as many as the level's fan; on
//             level 0 a rank; on the last, all. Groups of a level have as many, or one more
//   members   those groups
//   share     what one aggregator of a flat group would sum (layout.h). Each group has one for each
//             share, on one of its ranks, and another share is another rank's: work and bytes are
//             spread as by reduce-scatters, one level after another
//
// A rank speaks on level k with ranks of its own group alone: with fan - 1, where fans multiply to
// the ranks, as those differ from it in one digit; else with up to some times as many.
#pragma once

#include <cstdint>
#include <vector>

namespace omnihvd {

class Tree {
 public:
  // fans: how many members a group has at most, from the first level on. Throws Error: no ranks, a
  // fan under 2, or so few that the last level has several groups.
  Tree(uint32_t ranks, const std::vector<uint32_t>& fans);

  // The fewest levels whose fans, about alike, let a rank speak with `peers` others at most; or
  // fans of 2. One rank: one level.
  static std::vector<uint32_t> fans_for(uint32_t ranks, uint32_t peers);

  uint32_t levels() const { return uint32_t(groups_.size()) - 1; }
  uint32_t group_of(uint32_t level, uint32_t rank) const;
  // Of a group; numbered from 0. The one that a rank belongs to is member_of(level, rank).
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

  std::vector<uint32_t> groups_;  // [level]: how many there are; of level 0, ranks
  std::vector<uint32_t> fans_;    // [level]: the most members; [0]: 1
  std::vector<uint32_t> spans_;   // [level]: fans up to this one, multiplied
};

}  // namespace omnihvd
