// The algorithm of a sum, as OMNIHVD_WAY and OMNIHVD_GPU name it, as the selector chooses it
// (algorithms/policy.h) and as statistics count it. All algorithms give the same sum, except for
// the order of additions.
//
//   automatic  the fastest algorithm measured; in settings only
//   stream     sends non-zero blocks through aggregators; to the policy it stands for shared, too
//   shared     sums non-zero blocks over the memory of the one host
//   unite      unites the ranks' bitmaps of non-zero blocks, gathers the union's blocks into a
//              buffer, has the original library sum it, and scatters the sums back
//   original   the original library sums the tensor
//   coded      as stream, but dense blocks of floats are compressed (numeric/lossless.h)
//   inlined    sends non-zero blocks through an in-network aggregator; counted only, since it
//              replaces stream where such an aggregator exists (OMNIHVD_INLINE)
//   plugin     the algorithm that a plugin registers (OMNIHVD_PLUGIN), under a name of its own
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

enum class Way : uint8_t { automatic, stream, shared, unite, original, coded, inlined, plugin };
constexpr const char* kWayNames[] = {"auto",     "stream", "shared", "union",
                                     "original", "coded",  "inline", "plugin"};
constexpr size_t kWays = sizeof kWayNames / sizeof *kWayNames;
constexpr Way kCountedWays[] = {Way::stream, Way::shared,  Way::unite, Way::original,
                                Way::coded,  Way::inlined, Way::plugin};

constexpr const char* name_of(Way way) { return kWayNames[static_cast<size_t>(way)]; }

}  // namespace omnihvd
