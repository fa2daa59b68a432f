#include "algorithms/part_exchange.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace omnihvd {

PartExchange::PartExchange(Exchange& all, std::vector<int> members)
    : all_(all), members_(std::move(members)) {
  rank_ =
      static_cast<int>(std::find(members_.begin(), members_.end(), all.rank()) - members_.begin());
}

// Each rank's bytes begin with their kind: a step, or the end of its part.
std::vector<std::string> PartExchange::allgather(const std::string& mine) {
  const std::vector<std::string> said = all_.allgather("+" + mine);
  std::vector<std::string> parts;
  for (const int member : members_) {
    // The ranks of a part all fail together, but a rank may also fail alone for a local reason.
    if (said[member].empty() || said[member][0] != '+')
      throw Error("rank " + std::to_string(member) + " failed: see its message");
    parts.push_back(said[member].substr(1));
  }
  return parts;
}

void PartExchange::finish(const std::string& failure) {
  const std::string mine = "-" + failure;
  while (true) {
    const std::vector<std::string> said = all_.allgather(mine);
    if (std::any_of(said.begin(), said.end(),
                    [](const std::string& s) { return s.empty() || s[0] != '-'; }))
      continue;
    for (size_t rank = 0; rank < said.size(); ++rank)
      if (said[rank].size() > 1)
        throw Error("rank " + std::to_string(rank) + ": " + said[rank].substr(1));
    return;
  }
}

}  // namespace omnihvd
