// How a sum is made: as OMNIHVD_WAY and OMNIHVD_GPU say it, as it is chosen (ways/policy.h) and as
// it is counted. All ways give the same sum, but for the order of additions.
//
//   automatic  in the way that has been fastest; of settings only
//   stream     non-zero blocks, through aggregators; to the policy it stands for shared, too
//   shared     non-zero blocks, over the memory of the one host
//   unite      the ranks' bitmaps of non-zero blocks are united; the union's blocks are gathered
//              into a buffer, which the original library sums, and are put back
//   original   the original library sums the tensor
//   coded      as stream, with dense blocks of floats made smaller (protocol/lossless.h)
//   inlined    non-zero blocks, through an aggregator in the data path; counted only, since it
//   takes
//              the place of streams where there is one (OMNIHVD_INLINE)
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

enum class Way : uint8_t { automatic, stream, shared, unite, original, coded, inlined };
constexpr const char* kWayNames[] = {"auto",     "stream", "shared", "union",
                                     "original", "coded",  "inline"};
constexpr size_t kWays = sizeof kWayNames / sizeof *kWayNames;
constexpr Way kCountedWays[] = {Way::stream,   Way::shared, Way::unite,
                                Way::original, Way::coded,  Way::inlined};

constexpr const char* name_of(Way way) { return kWayNames[static_cast<size_t>(way)]; }

}  // namespace omnihvd
