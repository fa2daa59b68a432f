// Random choices that follow from a seed, the same with every standard library.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace omnihvd::simulation {

class Prng {
 public:
  explicit Prng(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  double share() { return double(random_() >> 11) * 0x1p-53; }
  bool chance(double share_of) { return share() < share_of; }
  template <class T>
  T one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace omnihvd::simulation
