// Launches kernels for callers in Python.
#pragma once

#include "cuda_emulation.h"

// Null, or what went wrong.
inline const char* emulate(uint64_t grid, unsigned threads, unsigned seed,
                           const std::function<void()>& kernel) {
  static std::string failure;
  try {
    emulation::launch(grid, threads, seed, kernel);
    return nullptr;
  } catch (const std::exception& error) {
    return (failure = error.what()).c_str();
  }
}
