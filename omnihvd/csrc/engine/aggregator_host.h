// A dedicated aggregator's process: an engine that sums for the groups it admits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/session.h"

namespace omnihvd {

class AggregatorHost {
 public:
  static std::unique_ptr<AggregatorHost> create(const Settings& settings,
                                                Engine::TransportFactory factory);
  virtual ~AggregatorHost() = default;

  // One address per progress thread, for the next group; after the loss of a peer, those of new
  // threads.
  virtual std::vector<std::string> addresses() = 0;
  // Begins to sum for a group. `description` is the u64 number of our node in it, then
  // GroupInfo::pack(). The caller has verified that it comes from a holder of the secret. The group
  // ends by itself once its workers have left. Throws Error.
  virtual void admit(const std::string& description, const std::string& secret) = 0;
};

}  // namespace omnihvd
