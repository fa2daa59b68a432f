// How a sum is made: as OMNIHVD_WAY and OMNIHVD_GPU say it, as it is chosen (ways/policy.h) and as
// it is counted. All ways give the same sum, but for the order of additions.
//
//   automatic  in the way that has been fastest; of settings only
//   stream     non-zero blocks, through aggregators; to the policy it stands for shared, too
//   shared     non-zero blocks, over the memory of the one host
//   unite      the ranks' bitmaps of non-zero blocks are united; the union's blocks are gathered
//              into a buffer, which the original library sums, and are put back
//   original   the original library sums the tensor
//
// The last two have a variant each, of the policy only: by the library's reduce-scatter and
// allgather instead of its allreduce ("two-step"), which is often faster for large tensors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

enum class Way : uint8_t { automatic, stream, shared, unite, original, unite_two_step, two_step };
constexpr const char* kWayNames[] = {
    "auto", "stream", "shared", "union", "original", "union, two-step", "original, two-step"};
constexpr size_t kWays = sizeof kWayNames / sizeof *kWayNames;
constexpr Way kCountedWays[] = {Way::stream, Way::shared, Way::unite, Way::original};

constexpr const char* name_of(Way way) { return kWayNames[static_cast<size_t>(way)]; }

}  // namespace omnihvd
