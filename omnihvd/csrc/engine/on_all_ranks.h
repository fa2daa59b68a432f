// A step of every rank that must succeed on all ranks.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/session.h"

namespace omnihvd {

// Collective. Runs `step`; then all ranks learn of the first that failed. Returns empty if none
// did; else "rank N: why".
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

// Collective. Throws Error, on all ranks, if it failed on one.
template <typename Step>
void start_on_all_ranks(Exchange& exchange, Step step) {
  if (const std::string problem = on_all_ranks(exchange, step); !problem.empty())
    throw Error("omnihvd cannot start on " + problem);
}

}  // namespace omnihvd
