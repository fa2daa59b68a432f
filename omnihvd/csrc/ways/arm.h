// The ways in which a sum can be made. All give the same sum, but for the order of additions.
//
//   own       non-zero blocks, streamed through aggregators; or over shared memory, where all ranks
//             are on one host
//   unite     the ranks' bitmaps of non-zero blocks are united, the union's blocks are gathered
//             into a buffer, which the original library sums, and are put back
//   original  the original library sums the tensor
// The last two in two variants: by the library's allreduce, or by its reduce-scatter and allgather
// ("two-step"), which is often faster for large tensors.
#pragma once

#include <cstdint>

namespace omnihvd {

enum class Arm : uint8_t { own, unite, unite_two_step, original, two_step };
constexpr int kArms = 5;

constexpr const char* name_of(Arm arm) {
  constexpr const char* names[kArms] = {"omnihvd's own", "union", "union, two-step", "original",
                                        "original, two-step"};
  return names[static_cast<int>(arm)];
}

}  // namespace omnihvd
