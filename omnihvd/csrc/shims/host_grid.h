// When the ranks of a communicator reduce in two levels: inside the hosts, then between them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace omnihvd {

// Why the ranks, each on hosts[rank], form no grid (hosts by local index) worth it; null: they do.
inline const char* grid_obstacle(const std::vector<std::string>& hosts) {
  std::map<std::string, int> ranks;
  for (const std::string& host : hosts) ++ranks[host];
  const int each = ranks.begin()->second;
  if (ranks.size() == 1) return "they are all on one host";
  for (const auto& host : ranks)
    if (host.second != each) return "the hosts have different numbers of them";
  return each == 1 ? "each is on a host of its own" : nullptr;
}

}  // namespace omnihvd
