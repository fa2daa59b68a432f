// The interface between the kernels and the code that launches them. It also compiles as plain C++.
//
//   compact  <<<compact_grid(elements, width), kCompactThreads>>>
//            (address, elements, segments, n_segments, flags, totals, bitmap, records, data)
//   scatter  <<<scatter_grid(most, width, block_size), kScatterThreads>>>
//            (address, elements, segments, n_segments, records, count, data)
//
// For sums by NCCL on the union of the ranks' non-zero blocks:
//
//   mark     <<<word_grid(words), kWordThreads>>> (address, elements, flags, trailer, marks)
//   unite    <<<at_most(kUniteCtas, chunks), kUniteThreads>>>
//            (own, all, words, words_per_chunk, united, prefix, counts, arrived, starts, seen,
//             number)
//   gather   <<<word_grid(words), kWordThreads>>> (address, elements, union, buffer)
//   spread   <<<word_grid(words), kWordThreads>>> (address, elements, union, buffer, fill)
//   rest     <<<1, kWordThreads>>>
//            (in, out, elements, union, rest, data, dtype, factor, format)
//
// Marks: a byte for each block, 0 or 1, in whole words of 32 blocks; the four bytes of the trailer
// follow. The maximum over ranks, byte by byte, is `all`: the marks of the union, and a trailer.
// unite turns it into bits, and counts this rank's blocks in `own`. For each word, prefix holds how
// many blocks of the chunk are in the words before it; counts has an entry for each chunk. The last
// CTA adds them up: it writes where each chunk begins in the union, followed by the end, and what
// the host is told. arrived must be 0, and is 0 again. own and all are aligned to 16 bytes.
// gather copies blocks of the union into a dense buffer, always as whole blocks, even if the last
// one of the tensor is short; spread copies them back and, if fill is set, writes zeros between
// them. rest sums the blocks beyond union.first, if there are any, in windows of union.room blocks
// in pinned memory. The host replaces each window by the sum over ranks. If the host reports that
// the sum has failed, rest sets every bit of the output.
//
// For sums under a codec, in modules of float32 only:
//
//   encode   <<<any grid, kCodeThreads>>>
//            (address, elements, rest, quantizer, bits, seed, who, first_block, parcel_blocks,
//             parcels)
//   decode   <<<any grid, kCodeThreads>>>
//            (address, elements, quantizer, bits, seed, count, parcel_blocks, parcels)
//
// rest is the residual: as long as the tensor, or 0 for none. encode adds it to the tensor, in
// place, and stores in it what the codes lose.
//
// A parcel holds the codes of parcel_blocks blocks. It begins with a word that identifies its
// coding and seed. The heads follow (1 byte for the quantizer kPowers, 8 for kSign or kTwoMeans,
// else 4), then the codes (`bits` bits an element, for all elements of a block). Each part is
// rounded up to whole kTileUnits; parcels begin at such a unit, too. A head and its codes are as
// omnihvd/csrc/numeric/codec.h defines them for a block. encode fills one parcel after another;
// the key of the tensor's block b is that of first_block + b. For block b, decode begins with the
// parcel b / parcel_blocks and adds the others of `count` to it, in their order. A parcel of
// another coding or seed, from a rank that does something else, decodes as NaN.
//
// A smaller grid also works. If records and data are in host memory, PCIe is the bottleneck: 32
// CTAs saturate it and leave the other multiprocessors free.
//
// scatter reads the number of records from *count, so the caller need only know an upper bound when
// it launches the kernel.
//
// The module is compiled for one element width, zero test and block size (see kernels.cu).
//
// The tensor is `elements` elements at `address`. If n_segments is not 0, it is the concatenation
// of the segments, and address is ignored. Addresses are multiples of the element's width. totals,
// bitmap, records, count, segments: aligned to their type. compact's data: aligned to 16 bytes, and
// best to 128, the unit of memory and of PCIe, because the output of a tile begins at a multiple of
// 128. totals and bitmap must be in device memory, because atomic operations need it; segments,
// records, count and data may also be in pinned host memory.
#pragma once

#ifdef __CUDACC_RTC__
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

namespace omnihvd {
namespace kernels {

struct Segment {
  uint64_t address;
  uint64_t end;  // elements of the tensor up to this segment's end: ascends strictly
};

// Where a non-zero block lies in `data`. If it has fewer bytes than its elements take, it is packed
// as in omnihvd/csrc/numeric/block_ops.h; else it holds the plain elements.
struct Record {
  uint64_t block;
  uint64_t place;  // byte offset << 16 | bytes
};

// The counters of compact. All zero before a launch; afterwards they hold how much of `records` and
// `data` is used. `data` has room for the tensor's bytes, rounded up to kTileUnit.
struct Totals {
  uint64_t records;
  uint64_t bytes;
};

enum CompactFlags : uint32_t {
  kPack = 1,  // blocks that are mostly zeros become packed
  // Blocks of nothing but 0 and -0.0 are overwritten with 0. In-place sums need this: such blocks
  // are neither sent nor received, but must be the same on all ranks. Otherwise the tensor is only
  // read.
  kClearNegativeZeros = 2,
};

// Written by unite for each chunk: blocks of the union, and blocks of this rank.
struct ChunkCounts {
  uint32_t united, own;
};

// The same counts for a whole sum, in pinned memory. number is written last and identifies the sum.
struct Seen {
  uint64_t number, united, own, trailer;
};

// Blocks first to first + room of a union, in a buffer that begins with the first of them. In the
// union, a block of chunk c has the index starts[c] + (number of union blocks before it in the
// chunk).
struct Union {
  const uint32_t* united;
  const uint32_t* prefix;
  const uint64_t* starts;
  uint64_t words, words_per_chunk, first, room;
};

// In pinned memory, one for each communicator: what rest asks the host for, and the host's answer.
// Windows are numbered over all sums; `blocks` is the size of the newest window, in blocks of the
// type.
struct Rest {
  uint32_t asked, answered;
  uint64_t blocks;
  uint32_t dtype;
  uint32_t failed, alone;  // all sums, from now on; sums that would have to ask
  uint32_t lost;           // set where a sum ended for one of these reasons
};

// As in omnihvd/csrc/numeric/codec.h.
enum Quantizer : uint32_t { kPowers, kRandomLevels, kNearestLevel, kTernary, kSign, kTwoMeans };
struct Coding {
  uint32_t quantizer, bits;
};

// The bytes that one warp holds in registers. As long as a stripe (omnihvd/csrc/protocol/layout.h),
// so that blocks that are sent together lie together.
constexpr uint32_t kTileBytes = 8192;
constexpr uint32_t kTileUnit = 128;
constexpr uint32_t kCompactThreads = 128;
constexpr uint32_t kScatterThreads = 256;
constexpr uint32_t kWordThreads = 128;
constexpr uint64_t kWordCtas = 2048;
constexpr uint32_t kUniteThreads = 128;
constexpr uint64_t kUniteCtas = 1024;
constexpr uint64_t kScatterCtas = 1024;  // at most: fills any GPU; CTAs loop over the records
constexpr uint32_t kCodeThreads = 128;

// For rest: an element of two bytes has one of these formats.
enum Format : uint32_t { kIeee = 0, kBfloat16 = 1 };

#ifndef __CUDACC_RTC__  // the host's side
constexpr uint64_t at_most(uint64_t limit, uint64_t n) { return n < limit ? n : limit; }

constexpr uint64_t compact_grid(uint64_t elements, uint32_t width) {
  const uint64_t per_cta = kTileBytes / width * (kCompactThreads / 32);
  return (elements + per_cta - 1) / per_cta;
}

constexpr uint64_t word_grid(uint64_t words) {
  const uint64_t per_cta = kWordThreads / 32;
  return at_most(kWordCtas, (words + per_cta - 1) / per_cta);
}

// Some lanes of a warp handle a block of up to 512 bytes; a whole warp handles a longer one.
constexpr uint64_t scatter_grid(uint64_t most, uint32_t width, uint32_t block_size) {
  const uint32_t lanes = block_size * width < 512 ? block_size * width / 16 : 32;
  const uint32_t per_cta = kScatterThreads / lanes;
  return at_most(kScatterCtas, (most + per_cta - 1) / per_cta);
}
#endif

}  // namespace kernels
}  // namespace omnihvd
