// How a group comes to be: its ranks learn of each other over an Exchange.
#pragma once

#include <functional>
#include <memory>

#include "session/group_info.h"
#include "session/session.h"

namespace omnihvd {

// Collective. `self` describes this process. Rank 0 chooses the group's number, its key and the
// settings, and brings in the dedicated aggregators. When anything fails on any rank, every rank
// throws an Error that names the rank.
std::shared_ptr<const GroupInfo> agree_on_group(Exchange& exchange, const Node& self,
                                                const Settings& settings);

// Collective. Ends when all ranks have done the step; throws on all of them if it has thrown on
// one.
void meet(Exchange& exchange, const Node& self, const std::function<void()>& step);

}  // namespace omnihvd
