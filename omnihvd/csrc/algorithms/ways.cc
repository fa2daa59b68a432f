#include "algorithms/ways.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/log.h"

namespace omnihvd {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Way Ways::sum(const void* in, void* out, uint64_t count, DType dtype, Library& library,
              const Own& own) {
  const Sum sum{in, out, count, dtype};
  // Choices that depend on times differ from run to run.
  if (settings_.way != Way::automatic || settings_.deterministic)
    return make(settings_.way, sum, library, own).way;

  const bool first = std::exchange(is_first_, false);
  const Densities::Guess guess = densities_.guess(count, dtype);
  Way way = Way::unite;
  if (!guess.look) way = next({size_class(sum.bytes()), guess.density}, sum, library, first);
  const double begin = clock_();
  const Made made = make(way, sum, library, own);
  if (made.united) densities_.learn(made.density);
  if (library.rank() == 0) learn(way, sum, guess.density, made, clock_() - begin);
  return made.way;
}

// Follows rank 0's decisions. Rank 0 makes a new one when the last is used up. Before the first sum
// rank 0 knows no more than the others, so each rank computes the decision by itself.
Way Ways::next(Cell cell, const Sum& sum, Library& library, bool first) {
  State& state = cells_[cell];
  if (state.left == 0) {
    if (first || library.rank() == 0) {
      const Order next = policy_.order(cell, sum.bytes());
      if (next.now != state.order.now && library.rank() == 0)
        log(LogLevel::info, "sums of about ", sum.bytes(), " bytes in density class ",
            cell.density == kUnknown ? "unknown" : std::to_string(cell.density), " of ", kDense,
            ": from now on ", name_of(next.now));
      state.order = next;
    }
    if (!first) library.tell(&state.order, sizeof state.order);
    state.left = state.order.after + 1u;
  }
  return --state.left > 0 ? state.order.now : state.order.trial;
}

Ways::Made Ways::make(Way way, const Sum& sum, Library& library, const Own& own) {
  const size_t element = size_of(sum.dtype);
  switch (way) {
    case Way::automatic:  // with OMNIHVD_DETERMINISTIC
    case Way::stream:
    case Way::shared:
    case Way::plugin:
    case Way::coded: {
      const bool coded = way == Way::coded && info_of(sum.dtype).is_float;
      const Codec codec{coded ? CodecKind::lossless : CodecKind::none};
      const uint64_t blocks = (sum.count + settings_.block_size - 1) / settings_.block_size;
      const std::optional<SumMade> done = own(sum.in, sum.out, codec);
      if (!done) return make(Way::original, sum, library, own);
      const auto [made, united] = *done;
      return {made, std::min(sum.bytes(), united * settings_.block_size * element),
              density_class(united, blocks)};
    }
    case Way::unite: return unite(sum, library, own);
    default:
      count(sum, library);
      sum_by_library(sum.in, sum.out, sum.count, element, library);
      return {Way::original, std::nullopt};
  }
}

uint64_t Ways::ring_of(uint64_t bytes, const Library& library) const {
  return ring_bytes(uint64_t(library.size()), bytes, scatters_);
}

// Counts what omnihvd's own algorithms count themselves.
void Ways::count(const Sum& sum, const Library& library) const {
  stats().calls += 1;
  stats().bytes_in += sum.bytes();
  stats().ring_bytes += ring_of(sum.bytes(), library);
}

void Ways::count_blocks(uint64_t marked_here) const {
  stats().blocks += union_.blocks();
  stats().nonzero_blocks += marked_here;
  stats().result_blocks += union_.marked();
}

Ways::Made Ways::unite(const Sum& sum, Library& library, const Own& own) {
  // A reduce-scatter only inspects `in`, which must not change.
  union_.find(sum.in, scatters_ ? nullptr : sum.out, sum.count, sum.dtype, settings_.block_size);
  const uint64_t marked_here = union_.marked();
  library.unite(union_.bits().data(), union_.bits().size());
  const size_t element = size_of(sum.dtype);
  const int density = density_class(union_.marked(), union_.blocks());
  // Compacting a dense tensor would send as many bytes, with two more copies.
  if (density == kDense || scatters_) {
    const auto like = cells_.find(Cell{size_class(sum.bytes()), density});
    const Way way = like != cells_.end() ? like->second.order.now : Way::original;
    const Made made = make(way, sum, library, own);
    if (made.way == Way::original) count_blocks(marked_here);
    const uint64_t united = density == kDense ? sum.bytes() : union_.elements() * element;
    return {made.way, united, density, false};
  }
  count(sum, library);
  count_blocks(marked_here);
  const uint64_t elements = union_.elements();
  if (elements > 0) {
    uint8_t* const compacted = union_.compact();
    sum_by_library(compacted, compacted, elements, element, library);
  }
  union_.scatter();
  return {Way::unite, elements * element, density};
}

void Ways::sum_by_library(const void* in, void* out, uint64_t count, size_t element,
                          Library& library) {
  const double begin = clock_();
  library.run(in, out, count);
  stats().library_bytes += ring_of(count * element, library);
  policy_.library_took(count * element, clock_() - begin);
}

void Ways::learn(Way way, const Sum& sum, int guessed, const Made& made, double seconds) {
  const int size = size_class(sum.bytes());
  if (policy_.connects(way, seconds)) return;
  if (made.as_wished)
    policy_.measured({size, made.united ? made.density : guessed}, way, sum.bytes(), made.united,
                     seconds);
  if (guessed == kUnknown && made.united)
    policy_.measured({size, kUnknown}, way, sum.bytes(), made.united, seconds);
}

}  // namespace omnihvd
