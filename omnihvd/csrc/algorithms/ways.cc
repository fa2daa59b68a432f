#include "algorithms/ways.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "numeric/block_ops.h"

namespace omnihvd {

void BlockUnion::find(const void* in, void* out, uint64_t count, DType dtype, uint32_t block_size) {
  in_ = static_cast<const uint8_t*>(in);
  out_ = static_cast<uint8_t*>(out);
  count_ = count;
  element_ = size_of(dtype);
  block_bytes_ = block_size * element_;
  blocks_ = (count + block_size - 1) / block_size;
  bits_.assign((blocks_ + 7) / 8, 0);
  const BlockOps& ops = block_ops(dtype);
  for (uint64_t block = 0; block < blocks_; ++block) {
    const uint8_t* const data = in_ + block * block_bytes_;
    const BlockOps::Content content = ops.inspect(data, bytes_of(block) / element_);
    bits_[block / 8] |= uint8_t(content.nonzero << (block % 8));
    if (!content.nonzero && content.negative_zero && in_ == out_)
      std::memset(out_ + block * block_bytes_, 0, bytes_of(block));
  }
}

uint32_t BlockUnion::bytes_of(uint64_t block) const {
  return uint32_t(std::min<uint64_t>(block_bytes_, count_ * element_ - block * block_bytes_));
}

template <typename Visit>
void BlockUnion::for_each_marked(Visit visit) const {
  for (size_t at = 0; at < bits_.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bits_.data() + at, std::min<size_t>(8, bits_.size() - at));
    for (; word; word &= word - 1) visit(at * 8 + uint64_t(__builtin_ctzll(word)));
  }
}

uint64_t BlockUnion::marked() const {
  uint64_t number = 0;
  for (const uint8_t byte : bits_) number += uint64_t(__builtin_popcount(byte));
  return number;
}

uint64_t BlockUnion::elements() const {
  uint64_t bytes = 0;
  for_each_marked([&](uint64_t block) { bytes += bytes_of(block); });
  return bytes / element_;
}

void BlockUnion::compact() {
  uint8_t* to = out_;
  for_each_marked([&](uint64_t block) {
    const uint8_t* const from = in_ + block * block_bytes_;
    if (from != to) std::memmove(to, from, bytes_of(block));
    to += bytes_of(block);
  });
}

// A block lies at its place or before it, so the last one goes first.
void BlockUnion::scatter(uint64_t elements) {
  const size_t compacted = elements * element_;
  size_t end = count_ * element_;  // all from there on is written
  const auto clear_from = [&](size_t begin) {
    // In place, what compact() has not written is zero already.
    const size_t stop = in_ == out_ ? std::min(end, compacted) : end;
    if (begin < stop) std::memset(out_ + begin, 0, stop - begin);
  };
  const uint8_t* from = out_ + compacted;
  for (uint64_t block = blocks_; block-- > 0;) {
    if (!(bits_[block / 8] >> (block % 8) & 1)) continue;
    const size_t at = block * block_bytes_, bytes = bytes_of(block);
    clear_from(at + bytes);
    from -= bytes;
    if (from != out_ + at) std::memmove(out_ + at, from, bytes);
    end = at;
  }
  clear_from(0);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Way Ways::sum(const Call& call, Library& library, const Own& own) {
  // Choices that depend on times differ from run to run.
  if (settings_.way != Way::automatic || settings_.deterministic)
    return make(settings_.way, call, library, own).way;

  const bool first = std::exchange(is_first_, false);
  const Densities::Guess guess = densities_.guess(call.count, call.dtype);
  Way way = Way::unite;
  if (!guess.look) way = next({size_class(call.bytes()), guess.density}, call, library, first);
  const double begin = clock_();
  const Made made = make(way, call, library, own);
  if (made.united) densities_.learn(made.density);
  if (library.rank() == 0) learn(way, call, guess.density, made, clock_() - begin);
  return made.way;
}

// Follows rank 0's decisions. Rank 0 makes a new one when the last is used up. Before the first sum
// rank 0 knows no more than the others, so each rank computes the decision by itself.
Way Ways::next(Bin bin, const Call& call, Library& library, bool first) {
  State& state = bins_[bin];
  if (state.left == 0) {
    if (first || library.rank() == 0) {
      const Order next = policy_.order(bin, call.bytes());
      if (next.now != state.order.now && library.rank() == 0)
        log(LogLevel::info, "sums of about ", call.bytes(), " bytes in density class ",
            bin.density == kUnknown ? "unknown" : std::to_string(bin.density), " of ", kDense,
            ": from now on ", name_of(next.now));
      state.order = next;
    }
    if (!first) library.tell(&state.order, sizeof state.order);
    state.left = state.order.after + 1u;
  }
  return --state.left > 0 ? state.order.now : state.order.trial;
}

Ways::Made Ways::make(Way way, const Call& call, Library& library, const Own& own) {
  const size_t element = size_of(call.dtype);
  switch (way) {
    case Way::automatic:  // with OMNIHVD_DETERMINISTIC
    case Way::stream:
    case Way::shared:
    case Way::plugin:
    case Way::coded: {
      const bool coded = way == Way::coded && info_of(call.dtype).is_float;
      const Codec codec{coded ? CodecKind::lossless : CodecKind::none};
      const uint64_t blocks = (call.count + settings_.block_size - 1) / settings_.block_size;
      const std::optional<SumMade> done = own(call.in, call.out, codec);
      if (!done) return make(Way::original, call, library, own);
      const auto [made, united] = *done;
      return {made, std::min(call.bytes(), united * settings_.block_size * element),
              density_class(united, blocks)};
    }
    case Way::unite: return unite(call, library, own);
    default:
      count(call, library);
      sum_by_library(call.in, call.out, call.count, element, library);
      return {Way::original, std::nullopt};
  }
}

// Counts what omnihvd's own algorithms count themselves.
void Ways::count(const Call& call, const Library& library) const {
  stats().calls += 1;
  stats().bytes_in += call.bytes();
  stats().ring_bytes += ring_bytes(uint64_t(library.size()), call.bytes(), scatters_);
}

void Ways::count_blocks(uint64_t marked_here) const {
  stats().blocks += union_.blocks();
  stats().nonzero_blocks += marked_here;
  stats().result_blocks += union_.marked();
}

Ways::Made Ways::unite(const Call& call, Library& library, const Own& own) {
  // A reduce-scatter only inspects `in`, which must not change.
  union_.find(call.in, scatters_ ? nullptr : call.out, call.count, call.dtype,
              settings_.block_size);
  const uint64_t marked_here = union_.marked();
  library.unite(union_.bits().data(), union_.bits().size());
  const size_t element = size_of(call.dtype);
  const int density = density_class(union_.marked(), union_.blocks());
  // Compacting a dense tensor would send as many bytes, with two more copies.
  if (density == kDense || scatters_) {
    const auto like = bins_.find(Bin{size_class(call.bytes()), density});
    const Way way = like != bins_.end() ? like->second.order.now : Way::original;
    const Made made = make(way, call, library, own);
    if (made.way == Way::original) count_blocks(marked_here);
    const uint64_t united = density == kDense ? call.bytes() : union_.elements() * element;
    return {made.way, united, density, false};
  }
  count(call, library);
  count_blocks(marked_here);
  const uint64_t elements = union_.elements();
  if (elements > 0) {
    union_.compact();
    sum_by_library(call.out, call.out, elements, element, library);
  }
  union_.scatter(elements);
  return {Way::unite, elements * element, density};
}

void Ways::sum_by_library(const void* in, void* out, uint64_t count, size_t element,
                          Library& library) {
  const double begin = clock_();
  library.run(in, out, count);
  stats().library_bytes += ring_bytes(uint64_t(library.size()), count * element, scatters_);
  policy_.library_took(count * element, clock_() - begin);
}

void Ways::learn(Way way, const Call& call, int guessed, const Made& made, double seconds) {
  const int size = size_class(call.bytes());
  if (policy_.connects(way, seconds)) return;
  if (made.as_wished)
    policy_.measured({size, made.united ? made.density : guessed}, way, call.bytes(), made.united,
                     seconds);
  if (guessed == kUnknown && made.united)
    policy_.measured({size, kUnknown}, way, call.bytes(), made.united, seconds);
}

}  // namespace omnihvd
