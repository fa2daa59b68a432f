// Counts of contributions by their fate, for Python: {name: number}.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>

#include "innetwork/slot_aggregator.h"

namespace omnihvd {

inline pybind11::dict dict_of_counts(const std::array<uint64_t, kInlineCounts>& values) {
  pybind11::dict counts;
  for (size_t i = 0; i < kInlineCounts; ++i) counts[kInlineCountNames[i]] = values[i];
  return counts;
}

}  // namespace omnihvd
