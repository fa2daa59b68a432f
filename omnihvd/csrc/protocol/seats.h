// Which process aggregates what, for whom: a tree over the ranks (tree.h), whose topmost
// aggregators may be processes of their own. Closed-form arithmetic, the same on every process.
//
// Processes are numbered as the nodes of a group are (session/group_info.h): the ranks, then the
// dedicated aggregators, which have a share each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/tree.h"

namespace omnihvd {

// An aggregator: that of a share, of the group on this level that its process belongs to.
struct Seat {
  uint32_t level = 1, share = 0;
  bool operator==(const Seat& o) const { return level == o.level && share == o.share; }
  bool operator<(const Seat& o) const {
    return level != o.level ? level < o.level : share < o.share;
  }
};

// Of `ranks` ranks, from what a setting says: "auto", or how many each level joins, from below, as
// "16x16"; those above one that joins all are left out. auto: with dedicated aggregators, and where
// a rank then speaks with Seats::kMostPeers others, one level; else the fewest with which it does.
// Throws Error: no such words, or levels that leave groups apart.
std::vector<uint32_t> fans_of(const std::string& levels, uint32_t ranks, uint32_t dedicated);

class Seats {
 public:
  // Beyond, a sum on one level takes longer, and more connections than a process should have:
  // docs/scale.md.
  static constexpr uint32_t kMostPeers = 64;

  // dedicated: how many processes are aggregators of the topmost level; 0: ranks are. Throws Error
  // as Tree does.
  Seats(uint32_t ranks, uint32_t dedicated, const std::vector<uint32_t>& fans);

  uint32_t levels() const { return tree_.levels(); }
  // Of a tensor of so many windows of each of an engine's threads. With levels none is smaller than
  // a window, which would cost frames and save nothing; but each rank of a group has as many.
  uint32_t shares(uint64_t windows) const;
  uint32_t most_shares() const { return shares(UINT64_MAX); }

  // The process on this seat, of the group of `node`.
  uint32_t host(const Seat& seat, uint32_t node) const;
  // Of the group on this level that `node` belongs to.
  uint32_t members(uint32_t level, uint32_t node) const {
    return tree_.members(level, tree_.group_of(level, rank_of(node)));
  }
  uint32_t member_of(uint32_t level, uint32_t rank) const { return tree_.member_of(level, rank); }
  // The process that contributes to this seat of the group of `node`, as its m-th member.
  uint32_t host_of_member(const Seat& seat, uint32_t node, uint32_t m) const {
    return tree_.host_of_member(seat.level, tree_.group_of(seat.level, rank_of(node)), m,
                                seat.share);
  }
  // Whose random numbers the codes of its partial sums take: no rank's, and no other aggregator's.
  uint32_t chance_of(uint32_t level, uint32_t node) const;
  // The same as Aggregator's `below`; none: there is no level above.
  std::optional<uint32_t> below(const Seat& seat, uint32_t node) const {
    if (seat.level == levels()) return std::nullopt;
    return chance_of(seat.level, node);
  }
  // With whom a process exchanges messages, whatever the tensor; ascending.
  std::vector<uint32_t> peers(uint32_t node) const;

  // A seat as a number, and back. Throws Error: there is none.
  uint64_t number(const Seat& seat) const {
    return uint64_t(seat.level - 1) * most_shares() + seat.share;
  }
  Seat at(uint64_t number) const;
  // What frames say: on one level a process has one aggregator at most, and they do not say whose
  // they are.
  std::optional<uint64_t> number_in_frames(const Seat& seat) const {
    if (levels() == 1) return std::nullopt;
    return number(seat);
  }

 private:
  // One of a process's group: all ranks are of the group of dedicated aggregators.
  uint32_t rank_of(uint32_t node) const { return node < ranks_ ? node : 0; }

  uint32_t ranks_, dedicated_, fan_;
  Tree tree_;
};

}  // namespace omnihvd
