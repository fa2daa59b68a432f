// One way for the ranks of a communicator to sum by omnihvd alone, and the registry of these.
//
// libomnihvd has three: over shared memory, in two levels, and by streaming. libomnihvd_innetwork
// registers the sums through in-network aggregators. A plugin registers its own (HACKING.md).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/call.h"
#include "algorithms/library.h"
#include "base/reason.h"
#include "base/way.h"
#include "engine/session.h"

namespace omnihvd {

struct SumMade {
  Way way;                 // how statistics count it
  uint64_t united_blocks;  // non-zero on any rank; the same on all ranks
};

// One for each communicator. One thread at a time. Leaves its groups when destroyed.
class Algorithm {
 public:
  virtual ~Algorithm() = default;
  // Pure, and the same on all ranks. Anything but Reason::none: the library makes the call.
  virtual Reason can(const Call&) const { return Reason::none; }
  // Collective, for the calls that it can. Throws Error; the object must then be destroyed, because
  // others may wait for this rank.
  virtual SumMade run(const Call& call, Library& library) = 0;
  // Sets the time-out of sums from now on; 0: none.
  virtual void set_timeout(double seconds) = 0;
  // Called from a sum's thread while it waits: fails the sum on all ranks, with this message.
  virtual void fail(const std::string& why) = 0;
  // The engine's group; null: none.
  virtual std::shared_ptr<Group> group() const { return nullptr; }
};

// Collective. Connects the ranks. settings: rank 0's where all must agree; hosts: of each rank.
// Returns null, on all ranks, if it does not fit the job; rank 0 logs why. Throws Error, on all
// ranks.
using MakeAlgorithm = std::function<std::unique_ptr<Algorithm>(
    Exchange&, const Settings& agreed, const std::vector<std::string>& hosts)>;

// Called when a library is loaded (base/plugin.h). "inline" is the name of the sums through
// in-network aggregators. Any other name is a plugin's: OMNIHVD_WAY chooses it.
void register_algorithm(const std::string& name, MakeAlgorithm make);

// Collective. The plugin's algorithm, if OMNIHVD_WAY names it. Else the first that fits: through an
// in-network aggregator, over shared memory, in two levels, by streaming. Throws Error, on all
// ranks.
std::unique_ptr<Algorithm> make_algorithm(Exchange& exchange, const Settings& agreed,
                                          const std::vector<std::string>& hosts);

// Whether the ranks of a job can reduce-scatter, before they connect. The same on all ranks.
bool can_scatter(const Settings& agreed, const std::vector<std::string>& hosts);

// Makes each of libomnihvd's own.
std::unique_ptr<Algorithm> make_shared_memory(Exchange&, const Settings&,
                                              const std::vector<std::string>& hosts);
std::unique_ptr<Algorithm> make_two_levels(Exchange&, const Settings&,
                                           const std::vector<std::string>& hosts);
std::unique_ptr<Algorithm> make_streamed(Exchange&, const Settings&,
                                         const std::vector<std::string>& hosts);

// Two levels whatever OMNIHVD_HIERARCHY says. The hosts must form a grid (host_grid.h). Null if the
// ranks of a host share no memory; `*obstacle` then says why.
std::unique_ptr<Algorithm> connect_two_levels(Exchange&, const Settings&,
                                              const std::vector<std::string>& hosts,
                                              std::string* obstacle);

}  // namespace omnihvd
