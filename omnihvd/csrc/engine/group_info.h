// The members of a group, and the key with which they authenticate. Immutable once the group is
// made; shared by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "protocol/layout.h"
#include "protocol/seats.h"

namespace omnihvd {

// A process of the group. A group numbers its nodes: first its workers by rank, then its dedicated
// aggregators.
struct Node {
  std::string host;                    // for messages: host name, or host:port
  std::vector<std::string> addresses;  // of its transports, one per progress thread

  std::string pack() const;
  static Node unpack(const std::string& bytes);  // throws Error
};

struct GroupInfo {
  uint64_t id = 0;
  std::string key;  // known to the members only
  uint32_t workers = 0;
  std::vector<Node> nodes;
  Settings settings;  // rank 0's

  std::shared_ptr<const Seats> seats;  // the aggregator roles; null until all nodes are known

  uint32_t dedicated() const { return uint32_t(nodes.size()) - workers; }
  bool has_levels() const { return seats->levels() > 1; }
  // Then sums can stay with the rank that aggregates them, too.
  bool all_are_peers() const { return !has_levels() && !dedicated(); }
  // With one level: the role of this process's aggregator.
  Seat only_seat(uint32_t node) const { return {1, node < workers ? node : node - workers}; }
  std::string name_of(uint32_t node) const;  // "rank 3 (host)"

  // The shape of a sum over all members; owner: for a reduce. block_size: 0: the
  // settings'.
  Shape shape_of(uint64_t count, DType dtype, const Codec& codec, uint32_t owner = Shape::kAll,
                 uint32_t block_size = 0) const {
    const uint64_t window = uint64_t(settings.message_bytes) * settings.streams;
    const uint32_t shares =
        owner == Shape::kAll ? seats->shares(count * size_of(dtype) / window) : 1;
    Shape shape = Shape::fit(count, dtype, block_size ? block_size : settings.block_size, shares,
                             settings.slots * settings.streams, settings.message_bytes, codec);
    shape.owner = owner;
    const Arithmetic own = Arithmetic::of(settings.arithmetic, dtype, workers);
    if (own.admits(codec)) shape.arithmetic = own;
    return shape;
  }

  // The address of the progress thread on which a node listens for a stream.
  const std::string& address(uint32_t node, uint32_t stream) const {
    const auto& all = nodes[node].addresses;
    return all[stream % all.size()];
  }

  // Throws Error if the levels do not fit the ranks.
  void take_seats();

  std::string pack() const;                           // all but the key
  static GroupInfo unpack(const std::string& bytes);  // throws Error; takes seats
};

// The hosts of all groups that this process has been in. Any thread.
void remember_hosts(const GroupInfo& info);
std::set<std::string> hosts_of_groups();      // of workers
bool aggregated(const std::string& address);  // was host:port a dedicated aggregator of one?

// The key of a group, derived from the job's secret.
std::string group_key(const std::string& secret, uint64_t group);

}  // namespace omnihvd
