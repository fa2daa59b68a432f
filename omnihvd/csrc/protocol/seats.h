// Aggregator roles (seats): which process aggregates what, for whom. They form a tree over the
// ranks (tree.h); its topmost aggregators may be processes of their own. Closed-form arithmetic,
// the same on every process.
//
// Processes are numbered like the nodes of a group (engine/group_info.h): first the ranks, then
// the dedicated aggregators, which have one share each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/tree.h"

namespace omnihvd {

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
