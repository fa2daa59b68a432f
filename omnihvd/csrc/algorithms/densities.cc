#include "algorithms/densities.h"

#include <algorithm>
#include <cmath>

namespace omnihvd {
namespace {

// Odd, so that tensors that take turns all get a look.
constexpr uint32_t kPatience = 7, kLongestPatience = 127;
constexpr uint32_t kAgree = 4;  // this many sums of about one size must agree

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

// The longer a density stays the same, the more rarely it is measured.
void Densities::History::learn(int told) {
  trusted = told == density || density == kUnknown || alike > 1;
  alike = told == density ? alike + 1 : 1;
  if (alike == 1)
    patience = kPatience;
  else if (unseen >= patience)
    patience = std::min(2 * patience + 1, kLongestPatience);
  unseen = 0;
  density = told;
}

Densities::Guess Densities::guess(uint64_t count, DType dtype) {
  if (tensors_.size() == kRemembered) tensors_.clear();
  last_ = {count, dtype};
  History& tensor = tensors_[last_];
  History& size = sizes_[size_class(count * size_of(dtype))];
  const bool told = tensor.density != kUnknown;
  bool look = ++tensor.unseen >= tensor.patience;
  if (!told) look |= ++size.unseen >= size.patience;
  if (told) return {tensor.trusted ? tensor.density : kUnknown, look};
  return {size.alike < kAgree ? kUnknown : size.density, look};
}

void Densities::learn(int density) {
  tensors_[last_].learn(density);
  sizes_[size_class(last_.first * size_of(last_.second))].learn(density);
}

}  // namespace omnihvd
