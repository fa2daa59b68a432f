#include "ways/densities.h"

#include <algorithm>
#include <cmath>

namespace omnihvd {
namespace {

constexpr uint32_t kLongestPatience = 128;

void age(uint32_t& unseen, uint32_t patience, Densities::Guess* guess) {
  guess->look = ++unseen >= patience;
}

}  // namespace

int density_class(uint64_t united, uint64_t blocks) {
  constexpr double limits[] = {1.0 / 256, 1.0 / 32, 1.0 / 8, 1.0 / 3, 2.0 / 3};
  const double share = blocks ? double(united) / double(blocks) : 0;
  int density = 0;
  while (density < kDense && share > limits[density]) ++density;
  return density;
}

int size_class(uint64_t bytes) {
  return bytes < 2 ? 0 : std::min(kSizes - 1, int(2 * std::log2(double(bytes))));
}

Densities::Guess Densities::guess(uint64_t count, DType dtype) {
  last_ = {count, dtype, before_[0], before_[1]};
  last_size_ = size_class(count * size_of(dtype));
  before_[1] = before_[0];
  before_[0] = count;
  const auto found = known_.find(last_);
  if (found == known_.end()) return guess_by_size(sizes_[last_size_]);
  Known& known = found->second;
  by_use_.splice(by_use_.end(), by_use_, known.used);
  Guess guess{known.density, false};
  age(known.unseen, known.patience, &guess);
  return guess;
}

Densities::Guess Densities::guess_by_size(Size& size) {
  const auto& last = size.last;
  if (std::count(last.begin(), last.end(), last[0]) < int(last.size())) return {};
  Guess guess{last[0], false};
  if (guess.density != kUnknown) age(size.unseen, size.patience, &guess);
  return guess;
}

void Densities::learn(int density) {
  const auto [at, fresh] = known_.try_emplace(last_);
  Known& known = at->second;
  if (fresh) {
    known.used = by_use_.insert(by_use_.end(), last_);
    if (known_.size() > kRemembered) {
      known_.erase(by_use_.front());
      by_use_.pop_front();
    }
  }
  // What stays the same is looked at ever more seldom.
  const auto settle = [&](bool same, uint32_t& unseen, uint32_t& patience) {
    if (!same)
      patience = 8;
    else if (unseen >= patience)
      patience = std::min(2 * patience, kLongestPatience);
    unseen = 0;
  };
  settle(known.density == density, known.unseen, known.patience);
  known.density = density;
  Size& size = sizes_[last_size_];
  settle(size.last[0] == density, size.unseen, size.patience);
  std::rotate(size.last.begin(), size.last.end() - 1, size.last.end());
  size.last[0] = density;
}

}  // namespace omnihvd
