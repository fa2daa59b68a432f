// The bootstrap of a group: its ranks learn of each other through an out-of-band allgather.
//
// Rank 0 brings in a dedicated aggregator over one TCP connection, on which both prove that they
// know the job's secret. The aggregator's side is omnihvd/aggregator.py.
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

#include <memory>

#include "engine/group_info.h"
#include "engine/session.h"

namespace omnihvd {

// Collective. `self` describes this process. Rank 0 chooses the group's number, its key and the
// settings, and brings in the dedicated aggregators. If anything fails on any rank, every rank
// throws an Error that names the rank.
std::shared_ptr<const GroupInfo> agree_on_group(Exchange& exchange, const Node& self,
                                                const Settings& settings);

}  // namespace omnihvd
