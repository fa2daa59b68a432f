// The loops behind block_ops.h, over the vectors of one instruction set. Included once by each
// block_ops_<instruction set>.cc after it has defined its vectors.
//
// Everything is in an unnamed namespace, and nothing inline from elsewhere is called: were the
// linker to fold a function compiled here for AVX2 with its twin in another file, programs
// would crash on older CPUs.
//
// A dtype's vectors are a struct V of static members:
//   Block, Sum      a vector of elements, and one of as many accumulators
//   One             an accumulator as a number; integers unsigned
//   lanes           elements in a vector: a multiple of 8, at most 64
//   size, sum_size  bytes of an element, of an accumulator
//   magnitude       64-bit pattern of the bits that make an element non-zero: all but the signs
//   load, store, load_sum, store_sum                         whole vectors, at any alignment
//   uint64_t nonzero(Block)                                  bit i: lane i is not zero
//   compress(uint8_t* to, Block, uint64_t mask)              stores the lanes in mask side by side;
//                                                            may write a whole vector
//   Block expand(const uint8_t* from, uint64_t mask)         the reverse, the other lanes are 0;
//                                                            may read a whole vector
//   Sum widen(Block), Block narrow(Sum), Sum add(Sum, Sum)
//   Sum add_where(uint64_t mask, Sum, Sum)                   the first where mask is not set
// Scan is the widest register as plain bits: Word, size, load, fill, either, any(bits, pattern).
#pragma once

#include <cstring>

#include "numeric/block_ops_set.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bitmaps are read as words");

namespace omnihvd {
namespace {

const uint8_t* bytes_of(const void* p) { return static_cast<const uint8_t*>(p); }
uint8_t* bytes_of(void* p) { return static_cast<uint8_t*>(p); }

// memcpy that allows null for zero bytes.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

size_t popcount(uint64_t bits) { return static_cast<size_t>(__builtin_popcountll(bits)); }

// How much of a vector the elements from i on fill.
struct All {};
struct First {
  size_t count;  // fewer than the vector has lanes
};

// Calls step(i, All) for each whole vector of n elements, then step(i, First) for what is left.
template <size_t lanes, class Step>
void each_vector(size_t n, Step step) {
  size_t i = 0;
  for (; n - i >= lanes; i += lanes) step(i, All{});
  if (i < n) step(i, First{n - i});
}

// Loads a short vector with 0 in the missing lanes.
template <class V>
typename V::Block load(const uint8_t* p, All) {
  return V::load(p);
}
template <class V>
typename V::Block load(const uint8_t* p, First part) {
  uint8_t padded[V::lanes * V::size] = {};
  std::memcpy(padded, p, part.count * V::size);
  return V::load(padded);
}

template <class V>
void store(uint8_t* p, typename V::Block elements, All) {
  V::store(p, elements);
}
template <class V>
void store(uint8_t* p, typename V::Block elements, First part) {
  uint8_t padded[V::lanes * V::size];
  V::store(padded, elements);
  std::memcpy(p, padded, part.count * V::size);
}

// The vectors of sums, to be loaded and stored as those of elements.
template <class V>
struct Sums {
  using Block = typename V::Sum;
  static constexpr size_t lanes = V::lanes, size = V::sum_size;
  static Block load(const uint8_t* p) { return V::load_sum(p); }
  static void store(uint8_t* p, Block sum) { V::store_sum(p, sum); }
};

// The bits of a vector in a bitmap. Those past a short one read as 0 even if a peer set them.
template <size_t lanes>
uint64_t load_bits(const uint8_t* p, All) {
  struct {
    uint64_t value : lanes;
  } bits;
  std::memcpy(&bits, p, lanes / 8);
  return bits.value;
}
template <size_t lanes>
uint64_t load_bits(const uint8_t* p, First part) {
  uint64_t bits = 0;
  std::memcpy(&bits, p, (part.count + 7) / 8);
  return bits & ((uint64_t{1} << part.count) - 1);
}

template <size_t lanes>
void store_bits(uint8_t* p, uint64_t bits, All) {
  std::memcpy(p, &bits, lanes / 8);
}
template <size_t lanes>
void store_bits(uint8_t* p, uint64_t bits, First part) {
  std::memcpy(p, &bits, (part.count + 7) / 8);
}

size_t count_bits(const uint8_t* bitmap, size_t n) {
  size_t count = 0;
  each_vector<64>(
      n, [&](size_t i, auto part) { count += popcount(load_bits<64>(bitmap + i / 8, part)); });
  return count;
}

template <class V>
BlockOps::Content inspect(const void* block, size_t n);

// A separate function, so that whole blocks need no stack.
template <class V>
__attribute__((noinline)) BlockOps::Content inspect_short(const void* block, size_t n) {
  uint8_t padded[Scan::size] = {};
  copy(padded, block, n * V::size);
  return inspect<V>(padded, Scan::size / V::size);
}

template <class V>
BlockOps::Content inspect(const void* block, size_t n) {
  constexpr BlockOps::Content nonzero = {true, false};
  const Scan::Word magnitude = Scan::fill(V::magnitude);
  const uint8_t* p = bytes_of(block);
  const size_t size = n * V::size;
  if (size < Scan::size) return inspect_short<V>(block, n);
  // Vectors may overlap, as inspecting an element twice does no harm. The first step falls short so
  // that later vectors do not straddle cache lines, provided that elements do not.
  const size_t past_boundary = reinterpret_cast<uintptr_t>(p) % Scan::size;
  size_t step = 4 * Scan::size - (past_boundary % V::size == 0 ? past_boundary : 0);
  Scan::Word seen = Scan::fill(0);
  size_t i = 0;
  for (; size - i >= 4 * Scan::size; i += step, step = 4 * Scan::size) {
    const Scan::Word first = Scan::load(p + i);
    // Dense blocks end here. The check is inside the loop on purpose: a separate load at a stride
    // of 2 KiB misleads the prefetcher and halves the speed of the scan (Zen 5).
    if (i == 0 && Scan::any(first, magnitude)) return nonzero;
    const Scan::Word four = Scan::either(
        Scan::either(first, Scan::load(p + i + Scan::size)),
        Scan::either(Scan::load(p + i + 2 * Scan::size), Scan::load(p + i + 3 * Scan::size)));
    if (Scan::any(four, magnitude)) return nonzero;
    seen = Scan::either(seen, four);
  }
  for (; i < size; i += Scan::size) {
    const size_t at = size - i >= Scan::size ? i : size - Scan::size;
    const Scan::Word one = Scan::load(p + at);
    if (Scan::any(one, magnitude)) return nonzero;
    seen = Scan::either(seen, one);
  }
  return {false, Scan::any(seen, Scan::fill(~V::magnitude))};
}

template <class V>
size_t count_nonzero(const void* block, size_t n) {
  size_t count = 0;
  each_vector<V::lanes>(n, [&](size_t i, auto part) {
    count += popcount(V::nonzero(load<V>(bytes_of(block) + i * V::size, part)));
  });
  return count;
}

template <class V>
size_t pack(const void* block, size_t n, uint8_t* out) {
  // Vectors are stored whole to a buffer here, so that nothing is written past the last value.
  constexpr size_t room = 2048;
  uint8_t buffer[room + V::lanes * V::size];
  uint8_t* fill = buffer;
  uint8_t* values = out + (n + 7) / 8;
  each_vector<V::lanes>(n, [&](size_t i, auto part) {
    const typename V::Block elements = load<V>(bytes_of(block) + i * V::size, part);
    const uint64_t mask = V::nonzero(elements);
    store_bits<V::lanes>(out + i / 8, mask, part);
    V::compress(fill, elements, mask);
    fill += popcount(mask) * V::size;
    if (fill > buffer + room) {
      std::memcpy(values, buffer, fill - buffer);
      values += fill - buffer;
      fill = buffer;
    }
  });
  copy(values, buffer, fill - buffer);
  return values + (fill - buffer) - out;
}

// Calls step(i, All or First, mask, elements) for each vector of a packed block.
template <class V, class Step>
void each_unpacked_vector(const uint8_t* packed, size_t n, Step step) {
  const uint8_t* values = packed + (n + 7) / 8;
  size_t left = count_bits(packed, n);
  // Vectors are loaded whole, so the last values are read from a padded copy.
  uint8_t last[2 * V::lanes * V::size];
  each_vector<V::lanes>(n, [&](size_t i, auto part) {
    if (left < V::lanes) {
      std::memcpy(last, values, left * V::size);
      values = last;
      left = 2 * V::lanes;
    }
    const uint64_t mask = load_bits<V::lanes>(packed + i / 8, part);
    const typename V::Block elements = V::expand(values, mask);
    values += popcount(mask) * V::size;
    left -= popcount(mask);
    step(i, part, mask, elements);
  });
}

template <class V>
void unpack(const uint8_t* packed, size_t n, void* block) {
  each_unpacked_vector<V>(packed, n, [&](size_t i, auto part, uint64_t, auto elements) {
    store<V>(bytes_of(block) + i * V::size, elements, part);
  });
}

template <class V>
void store_block(void* accumulator, const void* block, size_t n) {
  if constexpr (V::size == V::sum_size) {
    copy(accumulator, block, n * V::size);
  } else {
    each_vector<V::lanes>(n, [&](size_t i, auto part) {
      const typename V::Block elements = load<V>(bytes_of(block) + i * V::size, part);
      store<Sums<V>>(bytes_of(accumulator) + i * V::sum_size, V::widen(elements), part);
    });
  }
}

template <class V>
void add_block(void* accumulator, const void* block, size_t n) {
  each_vector<V::lanes>(n, [&](size_t i, auto part) {
    uint8_t* sums = bytes_of(accumulator) + i * V::sum_size;
    const typename V::Block elements = load<V>(bytes_of(block) + i * V::size, part);
    store<Sums<V>>(sums, V::add(load<Sums<V>>(sums, part), V::widen(elements)), part);
  });
}

template <class V>
void store_packed(void* accumulator, const uint8_t* packed, size_t n) {
  each_unpacked_vector<V>(packed, n, [&](size_t i, auto part, uint64_t, auto elements) {
    store<Sums<V>>(bytes_of(accumulator) + i * V::sum_size, V::widen(elements), part);
  });
}

template <class V>
void add_packed(void* accumulator, const uint8_t* packed, size_t n) {
  each_unpacked_vector<V>(packed, n, [&](size_t i, auto part, uint64_t mask, auto elements) {
    uint8_t* sums = bytes_of(accumulator) + i * V::sum_size;
    const typename V::Sum more = V::widen(elements);
    store<Sums<V>>(sums, V::add_where(mask, load<Sums<V>>(sums, part), more), part);
  });
}

// One element at a time: a listed block has too few elements for vectors to pay off.
template <class T>
T load_one(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <class T>
void store_one(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// Sets all bytes to 0. Skips vectors that are already 0: memory that is not written does not go
// back to DRAM, which is most of the cost of clearing a block.
void clear_sparse(uint8_t* p, size_t size) {
  const Scan::Word all = Scan::fill(~uint64_t{0});
  size_t i = 0;
  for (; size - i >= Scan::size; i += Scan::size)
    if (Scan::any(Scan::load(p + i), all)) std::memset(p + i, 0, Scan::size);
  std::memset(p + i, 0, size - i);
}

template <class V>
void unlist(const uint32_t* offsets, const uint8_t* elements, size_t count, void* block, size_t n) {
  constexpr size_t cache_line = 64;
  if (count * cache_line < n * V::size)
    clear_sparse(bytes_of(block), n * V::size);
  else  // elements in nearly every cache line
    std::memset(block, 0, n * V::size);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(bytes_of(block) + offsets[i] * V::size, elements + i * V::size, V::size);
}

// Calls step(i, sum) for each of `count` elements, converted to the type of sums.
template <class V, class Step>
void each_listed(const uint8_t* elements, size_t count, Step step) {
  using T = typename V::One;
  if constexpr (V::size == V::sum_size) {
    for (size_t i = 0; i < count; ++i) step(i, load_one<T>(elements + i * V::size));
  } else {
    each_vector<V::lanes>(count, [&](size_t first, auto part) {
      uint8_t wide[V::lanes * V::sum_size];
      V::store_sum(wide, V::widen(load<V>(elements + first * V::size, part)));
      const size_t lanes = count - first < V::lanes ? count - first : V::lanes;
      for (size_t i = 0; i < lanes; ++i) step(first + i, load_one<T>(wide + i * V::sum_size));
    });
  }
}

template <class V>
void store_listed(void* accumulator, const uint32_t* offsets, const uint8_t* elements, size_t count,
                  size_t n) {
  std::memset(accumulator, 0, n * V::sum_size);
  each_listed<V>(elements, count, [&](size_t i, typename V::One sum) {
    store_one(bytes_of(accumulator) + offsets[i] * V::sum_size, sum);
  });
}

template <class V>
void add_listed(void* accumulator, const uint32_t* offsets, const uint8_t* elements, size_t count) {
  using T = typename V::One;
  each_listed<V>(elements, count, [&](size_t i, T more) {
    uint8_t* const at = bytes_of(accumulator) + offsets[i] * V::sum_size;
    store_one(at, static_cast<T>(load_one<T>(at) + more));
  });
}

template <class V>
void finish(void* block, const void* accumulator, size_t n) {
  if constexpr (V::size == V::sum_size) {
    if (block != accumulator) copy(block, accumulator, n * V::size);
  } else {
    // In place, a vector is stored only after all of its input has been read.
    each_vector<V::lanes>(n, [&](size_t i, auto part) {
      const typename V::Sum sums = load<Sums<V>>(bytes_of(accumulator) + i * V::sum_size, part);
      store<V>(bytes_of(block) + i * V::size, V::narrow(sums), part);
    });
  }
}

template <class V>
constexpr BlockOps ops_of() {
  return {inspect<V>,    count_nonzero<V>, pack<V>,       unpack<V>,
          unlist<V>,     store_block<V>,   add_block<V>,  store_packed<V>,
          add_packed<V>, store_listed<V>,  add_listed<V>, finish<V>};
}

constexpr BlockOpsSet set_of_ops() {
#define OMNIHVD_OPS(dtype, of, T, vectors) ops_of<vectors>(),
  return {{OMNIHVD_DTYPES(OMNIHVD_OPS)}, count_bits};
#undef OMNIHVD_OPS
}

}  // namespace
}  // namespace omnihvd
