// The bootstrap of a group: its ranks learn of each other through an out-of-band allgather.
#pragma once

#include <functional>
#include <memory>

#include "engine/group_info.h"
#include "engine/session.h"

namespace omnihvd {

// Collective. `self` describes this process. Rank 0 chooses the group's number, its key and the
// settings, and brings in the dedicated aggregators. If anything fails on any rank, every rank
// throws an Error that names the rank.
std::shared_ptr<const GroupInfo> agree_on_group(Exchange& exchange, const Node& self,
                                                const Settings& settings);

// Collective. Returns once all ranks have done the step; throws on all ranks if it has thrown on
// one.
void meet(Exchange& exchange, const Node& self, const std::function<void()>& step);

}  // namespace omnihvd
