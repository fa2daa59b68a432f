// Decides when the ranks of a communicator reduce in two levels: inside the hosts, then between
// them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace omnihvd {

// Why the ranks, each on hosts[rank], form no useful grid (hosts by local index); null: they do.
inline const char* grid_obstacle(const std::vector<std::string>& hosts) {
  std::map<std::string, int> ranks;
  for (const std::string& host : hosts) ++ranks[host];
  const int each = ranks.begin()->second;
  if (ranks.size() == 1) return "they are all on one host";
  for (const auto& host : ranks)
    if (host.second != each) return "the hosts have different numbers of them";
  return each == 1 ? "each is on a host of its own" : nullptr;
}

// A rank's place in the grid. Ranks ascend.
struct GridPlace {
  int local_index = 0;
  std::vector<int> inside, across;  // the ranks of this host; those with this local index
};

inline GridPlace place_in_grid(int rank, const std::vector<std::string>& hosts) {
  std::map<std::string, int> ranks_so_far;
  std::vector<int> local_index_of;
  for (const std::string& host : hosts) local_index_of.push_back(ranks_so_far[host]++);
  GridPlace place;
  place.local_index = local_index_of[rank];
  for (int other = 0; other < static_cast<int>(hosts.size()); ++other) {
    if (local_index_of[other] == place.local_index) place.across.push_back(other);
    if (hosts[other] == hosts[rank]) place.inside.push_back(other);
  }
  return place;
}

}  // namespace omnihvd
