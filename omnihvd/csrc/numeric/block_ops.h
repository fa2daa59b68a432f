// Arithmetic on one block of n elements: the only code that looks at element values.
//
// One table per dtype; the best implementation for this CPU is picked once, at first use (AVX2 with
// F16C, or portable C++: block_ops_set.h). Pointers need no alignment. No function allocates,
// throws or keeps state: any thread may call.
//
// An element is zero when its value is 0 or -0.0. NaN and infinities are not zero.
//
// A packed block is ceil(n/8) bytes of occupancy bitmap (bit i of the block is bit i%8 of byte i/8)
// followed by the non-zero elements in order. The bits from n on are 0.
// A listed block is `count` elements and their offsets in the block, in strictly ascending order;
// all others are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/dtype.h"

namespace omnihvd {

struct BlockOps {
  // Describes a block of n elements. `negative_zero` is exact only if `nonzero` is false.
  struct Content {
    bool nonzero;        // some element is not zero
    bool negative_zero;  // all elements are zero, and some is -0.0
  };
  // Stops early at the first non-zero vector: this is the scan of the whole tensor.
  Content (*inspect)(const void* block, size_t n);

  size_t (*count_nonzero)(const void* block, size_t n);

  // Writes the packed form of `block` to `out`, which has room for
  // ceil(n/8) + count_nonzero * size_of(dtype) bytes and no more; returns the bytes written.
  size_t (*pack)(const void* block, size_t n, uint8_t* out);
  void (*unpack)(const uint8_t* packed, size_t n, void* block);  // all n elements are written
  // The caller clears the first n elements before: all of the block, or none if it is zero anyway.
  void (*unlist)(const uint32_t* offsets, const uint8_t* elements, size_t count, void* block,
                 size_t n);

  // Accumulators hold n elements of the accumulator type. Integers wrap.
  void (*store)(void* accumulator, const void* block, size_t n);  // accumulator = block
  void (*add)(void* accumulator, const void* block, size_t n);    // accumulator += block
  void (*store_packed)(void* accumulator, const uint8_t* packed, size_t n);
  void (*add_packed)(void* accumulator, const uint8_t* packed, size_t n);
  void (*store_listed)(void* accumulator, const uint32_t* offsets, const uint8_t* elements,
                       size_t count, size_t n);
  void (*add_listed)(void* accumulator, const uint32_t* offsets, const uint8_t* elements,
                     size_t count);

  // block = accumulator rounded to nearest even. Only f16 and bf16 differ from a copy; in place
  // (block == accumulator) is allowed.
  void (*finish)(void* block, const void* accumulator, size_t n);
};

const BlockOps& block_ops(DType dtype);

// Number of set bits of a packed block's bitmap: how many elements follow it.
size_t packed_count(const uint8_t* packed, size_t n);
// The packed form of a listed block of elements of so many bytes; returns the bytes written.
size_t pack_listed(const uint32_t* offsets, const uint8_t* elements, size_t count, size_t element,
                   size_t n, uint8_t* out);
inline size_t bitmap_bytes(size_t n) { return (n + 7) / 8; }

// Is the packed form of a block of n elements, `nonzero` of them not zero, enough smaller?
inline bool worth_packing(size_t n, size_t nonzero, size_t element) {
  return 4 * (bitmap_bytes(n) + nonzero * element) <= 3 * n * element;
}

}  // namespace omnihvd
