// A dedicated aggregator's process: an engine that sums for the groups that it is told of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/session.h"

namespace omnihvd {

class AggregatorHost {
 public:
  static std::unique_ptr<AggregatorHost> create(const Settings& settings,
                                                Engine::TransportFactory factory);
  virtual ~AggregatorHost() = default;

  // One for each engine thread, for the next group: after a peer was lost, those of new threads.
  virtual std::vector<std::string> addresses() = 0;
  // Begins to sum for a group; `description` is the u64 number of our node in it, then
  // GroupInfo::pack(). Whoever calls has made sure that it comes from a holder of the secret. The
  // group goes by itself when its workers have. Throws Error.
  virtual void admit(const std::string& description, const std::string& secret) = 0;
};

}  // namespace omnihvd
