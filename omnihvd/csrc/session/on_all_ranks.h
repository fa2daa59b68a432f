// A step of every rank that is worth nothing if one of them fails.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "session/session.h"

namespace omnihvd {

// Collective. Runs `step`; then all ranks know of the first that failed. Empty: none did; else
// "rank N: why".
template <typename Step>
std::string on_all_ranks(Exchange& exchange, Step step) {
  std::string problem;
  try {
    step();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::vector<std::string> problems = exchange.allgather(problem);
  for (size_t rank = 0; rank < problems.size(); ++rank)
    if (!problems[rank].empty()) return "rank " + std::to_string(rank) + ": " + problems[rank];
  return "";
}

}  // namespace omnihvd
