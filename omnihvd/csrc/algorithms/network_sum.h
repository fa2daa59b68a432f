// A sum by aggregators in the network (OMNIHVD_INLINE), as libomnihvd_innetwork makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/session.h"

namespace omnihvd {

// One thread at a time.
class NetworkSum {
 public:
  virtual ~NetworkSum() = default;
  virtual bool takes(DType dtype, const Codec& codec) const = 0;
  // Collective, for the sums that it takes. in == out: in place. Returns how many blocks were
  // non-zero on any rank. Throws Error on all ranks; the object must then be destroyed.
  virtual uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype) = 0;
  // Makes the other sums.
  virtual const std::shared_ptr<Group>& group() const = 0;
  // Sets the time-out of sums from now on; 0: none.
  virtual void set_timeout(double seconds) = 0;
};

// Collective. Joins the aggregator, and makes the group. Returns null on all ranks if the
// aggregator does not take the job; rank 0 logs why. Throws Error, on all ranks.
using MakeNetworkSum = std::unique_ptr<NetworkSum> (*)(Exchange& exchange, const Settings& agreed,
                                                       const std::vector<std::string>& hosts);
void set_network_sum(MakeNetworkSum make);  // by the library, when it is loaded

}  // namespace omnihvd
