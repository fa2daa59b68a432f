// Sums of lists of blocks over a group.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/session.h"
#include "engine/until_done.h"
#include "protocol/block_list.h"

namespace omnihvd {

// Collective. The sum over all ranks' lists, to call.out or `sums`. Throws Error as
// Group::allreduce; on all ranks if they differ in length, blocks or dtype, or one has an
// impossible list.
inline void sum_lists(Group& group, const ListCall& call, ListedSums* sums) {
  std::optional<BlockList> list;
  try {
    list.emplace(call);
  } catch (const Error& why) {  // else the others would wait for this rank
    group.fail("rank " + std::to_string(group.rank()) + ": " + why.what());
    throw;
  }
  sums->begin(call.row_bytes());
  const auto make = [&list, sums](const Layout& layout) {
    return std::make_unique<ListTensor>(layout, *list, sums);
  };
  until_done([&](Group::Done done) {
    group.reduce(group.reserve(), call.blocks * call.length, call.dtype, make, std::move(done), {},
                 uint32_t(call.length));
  });
}

}  // namespace omnihvd
