// Takes rare paths at random.
#pragma once

#include <array>
#include <cstdint>

#include "base/rare.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

class BadRarePaths : public RarePaths {
 public:
  // chance: that of each rare path except refused memory.
  BadRarePaths(Dice& dice, double chance, double refused = 0, uint32_t refusals = 0)
      : dice_(dice), chance_(chance), refused_(refused), refusals_(refusals) {}

  bool takes(Rare path) override {
    if (path == Rare::no_memory) {
      if (refusals_ == 0 || !dice_.chance(refused_)) return false;
      --refusals_;
      ++refused_so_far;
      return true;
    }
    const bool taken = chance_ > 0 && dice_.chance(chance_);
    rare_so_far += taken;
    return taken;
  }

  uint64_t refused_so_far = 0, rare_so_far = 0;

 private:
  Dice& dice_;
  const double chance_, refused_;
  uint32_t refusals_;
};

}  // namespace omnihvd::simulation
