// Block sparsifiers with error feedback, as omnihvd/compression/split.py implements them for
// tensors in host memory, in two passes over a gradient:
//
//   accumulate   velocity = momentum x velocity + gradient; the residual += velocity (without one:
//                += the gradient); writes the L2 norm of each block of the residual (without one:
//                of the gradient)
//   split        the gradient becomes the part that is sent, zeros elsewhere; the residual becomes
//                the other part; the velocity is cleared where it is sent
//
//   above        both at once, of single elements
//
// The choice of blocks is made in between: by choose.cuh, by a threshold, or by the caller's random
// choice.
//
// Sums are computed element by element, each rounded as PyTorch does, so the results are bit for
// bit PyTorch's, except for the payload of NaNs. Norms are not: squares are added in float32, in an
// order of our own. The order is fixed, so norms are the same in each run and on each device.
#pragma once

#include "scale.cuh"

namespace omnihvd {
namespace kernels {

struct Four {
  float of[4];
};

template <int kWidth>
struct FourBits;
template <>
struct FourBits<2> {
  using type = uint2;
};
template <>
struct FourBits<4> {
  using type = uint4;
};

// A tensor of float32, or of 16 bits in a Format, seen as floats, four at a time. With no elements
// it stands for an absent tensor.
template <int kWidth>
class Floats {
  using Bits = typename BitsOf<kWidth>::type;
  using Words = typename FourBits<kWidth>::type;
  union Held {
    Words words;
    Bits bits[4];
  };

 public:
  __device__ Floats(uint64_t address, uint64_t elements, uint32_t format = kIeee)
      : address_(address), elements_(address ? elements : 0), format_(format) {}

  __device__ bool there() const { return elements_ != 0; }
  __device__ uint64_t elements() const { return elements_; }

  // Elements i to i + 4; those behind the end are 0.
  __device__ Four load(uint64_t i) const {
    Held held;
    const uint64_t from = address_ + i * kWidth;
    if (i + 4 <= elements_ && from % sizeof(Words) == 0) {
      held.words = *reinterpret_cast<const Words*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        held.bits[e] = i + e < elements_ ? reinterpret_cast<const Bits*>(from)[e] : Bits(0);
    }
    Four four;
#pragma unroll
    for (int e = 0; e < 4; ++e) four.of[e] = widened(held.bits[e]);
    return four;
  }

  // The opposite, rounded; elements behind the end are dropped.
  __device__ void store(uint64_t i, const Four& four) const {
    Held held;
#pragma unroll
    for (int e = 0; e < 4; ++e) held.bits[e] = narrowed(four.of[e]);
    const uint64_t to = address_ + i * kWidth;
    if (i + 4 <= elements_ && to % sizeof(Words) == 0) {
      *reinterpret_cast<Words*>(to) = held.words;
      return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (i + e < elements_) reinterpret_cast<Bits*>(to)[e] = held.bits[e];
  }

  // A float after a store here and a load.
  __device__ float rounded(float value) const { return widened(narrowed(value)); }

 private:
  __device__ float widened(Bits bits) const {
    if constexpr (kWidth == 4)
      return __uint_as_float(bits);
    else
      return format_ == kBfloat16 ? float_of_bfloat16(bits) : float_of_half(bits);
  }
  __device__ Bits narrowed(float value) const {
    if constexpr (kWidth == 4)
      return __float_as_uint(value);
    else
      return Bits(format_ == kBfloat16 ? bfloat16_of_float(value) : half_of_float(value));
  }

  uint64_t address_, elements_;
  uint32_t format_;
};

// Adds an element of the gradient to the velocity and the residual, where they exist. Returns what
// may be sent of it.
__device__ inline float accumulated(float x, bool moves, float momentum, float& moving, bool keeps,
                                    float& left) {
  if (moves) x = moving = __fadd_rn(__fmul_rn(momentum, moving), x);
  if (keeps) x = left = __fadd_rn(left, x);
  return x;
}

template <int kWidth, int kBlock>
__device__ void accumulate_blocks(const Floats<kWidth>& gradient, const Floats<4>& rest,
                                  const Floats<4>& velocity, float momentum, float* norms) {
  using S = Shape<4, kBlock>;
  for_each_block<kBlock>((gradient.elements() + kBlock - 1) / kBlock, [&](uint32_t number) {
    const uint64_t first = uint64_t(number) * kBlock + S::place(0);  // rows are 128 apart
    Four total[S::kRows], moving[S::kRows], left[S::kRows];          // all on their way at once
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row) {
      total[row] = gradient.load(first + row * 128);
      moving[row] = velocity.load(first + row * 128);
      left[row] = rest.load(first + row * 128);
    }
    float squares = 0;
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = accumulated(total[row].of[e], velocity.there(), momentum, moving[row].of[e],
                                    rest.there(), left[row].of[e]);
        squares = __fadd_rn(squares, __fmul_rn(x, x));
      }
      velocity.store(first + row * 128, moving[row]);
      rest.store(first + row * 128, left[row]);
    }
#pragma unroll
    for (uint32_t d = 1; d < S::kLanes; d *= 2) {
      const uint32_t other = __shfl_xor_sync(kWarp, __float_as_uint(squares), d);
      squares = __fadd_rn(squares, __uint_as_float(other));
    }
    if (S::elements_of(number, gradient.elements()) && S::place(0) == 0)
      norms[number] = __fsqrt_rn(squares);
  });
}

// Sends the blocks with a byte in `keep` (null: none has), and those with a norm not below `least`.
// NaN is among them: it must reach the optimizer and must not stay in the residual.
template <int kWidth, int kBlock>
__device__ void split_blocks(const Floats<kWidth>& gradient, const Floats<4>& rest,
                             const Floats<4>& velocity, float scale, const float* norms,
                             float least, const uint8_t* keep, uint64_t* kept) {
  using S = Shape<4, kBlock>;
  const Four zeros = {{0, 0, 0, 0}};
  uint64_t sent_here = 0;  // elements
  for_each_block<kBlock>((gradient.elements() + kBlock - 1) / kBlock, [&](uint32_t number) {
    const uint32_t n = S::elements_of(number, gradient.elements());
    if (!n) return;
    const uint64_t first = uint64_t(number) * kBlock + S::place(0);
    if (!(keep && keep[number]) && norms[number] < least) {
#pragma unroll
      for (uint32_t row = 0; row < S::kRows; ++row) gradient.store(first + row * 128, zeros);
      return;
    }
    if (S::place(0) == 0) sent_here += n;
    Four total[S::kRows];
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row)
      total[row] = rest.there() ? rest.load(first + row * 128) : gradient.load(first + row * 128);
#pragma unroll
    for (uint32_t row = 0; row < S::kRows; ++row) {
      Four sent, left;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sent.of[e] = __fmul_rn(total[row].of[e], scale);
        left.of[e] = not_sent(total[row].of[e], gradient.rounded(sent.of[e]));
      }
      gradient.store(first + row * 128, sent);
      rest.store(first + row * 128, left);
      velocity.store(first + row * 128, zeros);
    }
  });
  if (kept && sent_here) atomicAdd(kept, sent_here);
}

// One pass suffices, since each element by itself decides whether it is sent: all but those from
// -limit to limit, so NaN is sent.
template <int kWidth>
__device__ void send_above(const Floats<kWidth>& gradient, const Floats<4>& rest,
                           const Floats<4>& velocity, float momentum, float limit, uint64_t* kept) {
  uint64_t sent_here = 0;
  const uint64_t step = uint64_t(gridDim.x) * kCodeThreads * 4;
  uint64_t i = (uint64_t(blockIdx.x) * kCodeThreads + threadIdx.x) * 4;
#pragma unroll 1
  for (; i < gradient.elements(); i += step) {
    Four sent = gradient.load(i), moving = velocity.load(i), left = rest.load(i);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float x = accumulated(sent.of[e], velocity.there(), momentum, moving.of[e],
                                  rest.there(), left.of[e]);
      sent.of[e] = x >= -limit && x <= limit ? 0 : x;
      const float as_sent = gradient.rounded(sent.of[e]);
      left.of[e] = not_sent(x, as_sent);
      if (as_sent == 0) continue;
      moving.of[e] = 0;
      ++sent_here;
    }
    gradient.store(i, sent);
    rest.store(i, left);
    velocity.store(i, moving);
  }
  if (kept && sent_here) atomicAdd(kept, sent_here);
}

}  // namespace kernels
}  // namespace omnihvd
