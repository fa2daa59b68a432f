// Takes rare paths at random.
#pragma once

#include <array>
#include <cstdint>

#include "base/rare.h"
#include "simulator/csrc/bad_session_plan.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

class BadRarePaths : public RarePaths {
 public:
  BadRarePaths(Dice& dice, const SessionPlan& plan)
      : dice_(dice), plan_(plan), refusals_(plan.refusals) {}

  bool takes(Rare path) override {
    if (path == Rare::no_memory) {
      if (refusals_ == 0 || !dice_.chance(plan_.refused)) return false;
      --refusals_;
      ++refused_so_far;
      return true;
    }
    const double chance = path == Rare::short_refer ? plan_.refers : plan_.rare;
    const bool taken = chance > 0 && dice_.chance(chance);
    rare_so_far += taken;
    return taken;
  }

  uint64_t refused_so_far = 0, rare_so_far = 0;

 private:
  Dice& dice_;
  const SessionPlan& plan_;
  uint32_t refusals_;
};

}  // namespace omnihvd::simulation
