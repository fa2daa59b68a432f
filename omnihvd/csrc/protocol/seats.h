// Aggregator roles (seats): which process aggregates what, for whom. They form a tree over the
// ranks (levels of hosts, racks, ...); its topmost aggregators may be processes of their own.
// Closed-form arithmetic, the same on every process, so that no table travels.
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
//
// Processes are numbered like the nodes of a group (engine/group_info.h): first the ranks, then
// the dedicated aggregators, which have one share each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace omnihvd {

// Which rank sums what for whom.
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

// An aggregator role: the level and share that a process aggregates for its group on that level.
struct Seat {
  uint32_t level = 1, share = 0;
  bool operator<(const Seat& o) const {
    return level != o.level ? level < o.level : share < o.share;
  }
};

// The fan-outs for `ranks` ranks, from a setting: "auto", or how many members each level joins,
// from the lowest up, such as "16x16"; levels above one that joins all are dropped. auto: one level
// if there are dedicated aggregators, or if a rank then has at most Seats::kMostPeers peers; else
// the fewest levels with which it has. Throws Error if the setting is malformed, or its levels
// leave groups apart.
std::vector<uint32_t> fans_of(const std::string& levels, uint32_t ranks, uint32_t dedicated);

class Seats {
 public:
  // With more peers a sum on one level takes longer, and needs more connections than a process
  // should have: docs/scale.md.
  static constexpr uint32_t kMostPeers = 64;

  // dedicated: how many processes are aggregators of the topmost level; 0: ranks are. Throws Error
  // as Tree does.
  Seats(uint32_t ranks, uint32_t dedicated, const std::vector<uint32_t>& fans);

  uint32_t levels() const { return tree_.levels(); }
  // How many shares a tensor has, given its windows per progress thread. With levels, no share is
  // smaller than a window, which would cost frames and save nothing; but each rank of a group has
  // equally many.
  uint32_t shares(uint64_t windows) const;
  uint32_t most_shares() const { return shares(UINT64_MAX); }

  // The process with this role, in the group of `node`.
  uint32_t host(const Seat& seat, uint32_t node) const;
  // Members of the group on this level that `node` belongs to.
  uint32_t members(uint32_t level, uint32_t node) const {
    return tree_.members(level, tree_.group_of(level, rank_of(node)));
  }
  uint32_t member_of(uint32_t level, uint32_t rank) const { return tree_.member_of(level, rank); }
  // The process that contributes to this role in the group of `node`, as its m-th member.
  uint32_t host_of_member(const Seat& seat, uint32_t node, uint32_t m) const {
    return tree_.host_of_member(seat.level, tree_.group_of(seat.level, rank_of(node)), m,
                                seat.share);
  }
  // The key of the random numbers for codes of its partial sums: no rank and no other aggregator
  // uses it.
  uint32_t chance_of(uint32_t level, uint32_t node) const;
  // The same as Aggregator's `below`; none: there is no level above.
  std::optional<uint32_t> below(const Seat& seat, uint32_t node) const {
    if (seat.level == levels()) return std::nullopt;
    return chance_of(seat.level, node);
  }
  // The processes with which a process exchanges messages, whatever the tensor; ascending.
  std::vector<uint32_t> peers(uint32_t node) const;

  // An aggregator role as a number, and back. Throws Error if there is none.
  uint64_t number(const Seat& seat) const {
    return uint64_t(seat.level - 1) * most_shares() + seat.share;
  }
  Seat at(uint64_t number) const;
  // The role as frames name it. On one level frames leave it out: a process has one aggregator at
  // most.
  std::optional<uint64_t> number_in_frames(const Seat& seat) const {
    if (levels() == 1) return std::nullopt;
    return number(seat);
  }

 private:
  // Some rank of a process's group: all ranks are in the group of dedicated aggregators.
  uint32_t rank_of(uint32_t node) const { return node < ranks_ ? node : 0; }

  uint32_t ranks_, dedicated_, fan_;
  Tree tree_;
};

}  // namespace omnihvd
