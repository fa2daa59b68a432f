// How rank 0 of a new group brings in a dedicated aggregator: over one TCP connection, on which
// both prove that they know the job's secret. The aggregator's side is omnihvd/aggregator.py.
//
//   every message   u32 length (little endian), then that many bytes
//   to aggregator   "omnihvd-join 7\n" + 32 random bytes A; 7 is kWireVersion
//   from it         "ok" + HMAC(secret, "aggregator" A B) + 32 random bytes B
//   to it           HMAC(secret, "worker" A B)
//   from it         "ok" + HMAC(secret, "addresses" A B T) + T: its transports' addresses, each a
//                   u64 length (little endian) and bytes
//   to it           HMAC(secret, "group" A B D) + D: the u64 number of its node in the group, and
//                   GroupInfo::pack()
//   from it         "ok" + HMAC(secret, "ready" A B): it is ready to sum
// Instead of "ok..." the aggregator may say "no" + the reason. D holds no key: both sides make the
// group's key from the secret and the group's number.
#pragma once

#include <string>
#include <vector>

#include "engine/group_info.h"

namespace omnihvd {

// Appends the aggregators at these host:port to the group's nodes, and sends each of them the
// description of the whole group, in parallel. Throws Error naming the aggregator. Takes seconds at
// most. If an aggregator has been in a group of this process and is unreachable now, leaves it out
// with a message: an elastic job continues without it, in the end with colocated aggregators alone.
void add_dedicated_aggregators(const std::vector<std::string>& addresses, const std::string& secret,
                               GroupInfo* info);

}  // namespace omnihvd
