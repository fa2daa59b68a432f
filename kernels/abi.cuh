// What passes between the kernels and those who launch them; compiles as plain C++, too.
//
//   compact  <<<compact_grid(elements, width), kCompactThreads>>>
//            (address, elements, segments, n_segments, flags, totals, bitmap, records, data)
//   scatter  <<<scatter_grid(most, width, block_size), kScatterThreads>>>
//            (address, elements, segments, n_segments, records, count, data)
//   scale    <<<stride_grid(elements, width), kStrideThreads>>>
//            (in, out, elements, factor, format): out = in x factor; in modules of floats only
//
// For sums by NCCL on the union of the ranks' non-zero blocks:
//
//   mark     <<<word_grid(words), kWordThreads>>> (address, elements, flags, marks)
//   unite    <<<at_most(kUniteCtas, chunks), kUniteThreads>>>
//            (marks, stride, ranks, rank, words, words_per_chunk, united, prefix, counts)
//   total    <<<1, kUniteThreads>>> (counts, chunks, starts, seen, number)
//   gather   <<<word_grid(words), kWordThreads>>> (address, elements, union, buffer)
//   spread   <<<word_grid(words), kWordThreads>>> (address, elements, union, buffer, fill)
//   rest     <<<1, kWordThreads>>>
//            (in, out, elements, union, rest, data, dtype, factor, format)
//
// Marks: a bit for each block, in words of 32. unite: the marks of all ranks, `stride` words apart,
// become the union's; prefix is, for each word, how many blocks of its chunk of the tensor are in
// the words before it; counts is of each chunk. total adds them up: where each chunk begins in the
// union, with the end behind it, and what the host is told. gather copies blocks of the union into
// a dense buffer, whole also where the tensor's last one is short; spread puts them back, and, if
// fill, zeros between them. rest sums what is behind union.first, if anything is, by windows of
// union.room blocks in pinned memory, each of which the host replaces by the ranks' sum; and sets
// every bit of the output if the host says that the sum has failed.
//
// For sums under a codec, in modules of float32 only:
//
//   encode   <<<any grid, kCodeThreads>>>
//            (address, elements, rest, quantizer, bits, seed, who, first_block, parcel_blocks,
//             parcels)
//   decode   <<<any grid, kCodeThreads>>>
//            (address, elements, quantizer, bits, seed, count, parcel_blocks, parcels)
//
// With a rest, which is as long as the tensor, or 0, encode adds it to the tensor, in place, and
// leaves in it what the codes lose.
//
// A parcel has what was made of parcel_blocks blocks: a word that says of which coding and seed it
// is; their heads (1 byte where the quantizer is kPowers, 8 where it is kSign or kTwoMeans, else
// 4); their codes (`bits` bits an element, all of a block's); each up to a whole kTileUnit, where
// parcels begin, too. A head and codes are what omnihvd/csrc/protocol/codec.h has for a block.
// encode fills one parcel after another; the key of the tensor's block b is that of
// first_block + b. decode begins for block b with the parcel b / parcel_blocks, and adds to that,
// in their order, the others of `count`; what is of another coding or seed, which a rank has sent
// that does something else, is NaN.
//
// Any grid that is smaller does, too. Where records and data lie in the host's memory, PCIe is what
// is waited for: kPcieCtas fill it, and leave the other multiprocessors to others.
//
// How many records there are, scatter reads from *count: who launches it need not know yet, only
// the most that there can be. If it is kNoResult, every bit of the tensor is set, which makes
// floating-point numbers NaN.
//
// The module is compiled for one element width, zero test and block size (see kernels.cu).
//
// The tensor is `elements` elements at `address`; or, when n_segments is not 0, the concatenation
// of the segments, and address is not looked at. Addresses are multiples of the element's width.
// totals, bitmap, records, count, segments: aligned to their type; compact's data: to 16 bytes, and
// best to 128, the unit of memory and of PCIe: what a tile leaves begins at a multiple of 128.
// totals and bitmap lie in device memory, as atomic operations need it; segments, records, count
// and data may as well lie in pinned memory of the host.
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

// Where a non-zero block lies in `data`. A block of fewer bytes than its elements take is packed as
// in omnihvd/csrc/protocol/block_ops.h; else it is the plain elements.
struct Record {
  uint64_t block;
  uint64_t place;  // byte offset << 16 | bytes
};

// Of compact. All zero before a launch; afterwards the used part of `records` and `data`. `data`
// has room for the tensor's bytes, rounded up to kTileUnit.
struct Totals {
  uint64_t records;
  uint64_t bytes;
};

enum CompactFlags : uint32_t {
  kPack = 1,  // blocks that are mostly zeros become packed
  // Blocks of nothing but 0 and -0.0 are overwritten with 0. For sums in place, where such blocks
  // are neither sent nor received but must be the same on all ranks. Else the tensor is only read.
  kClearNegativeZeros = 2,
};

// Of unite, for a chunk: blocks of the union, and of this rank.
struct ChunkCounts {
  uint32_t united, own;
};

// The same of a whole sum, in pinned memory; number, which is written last, says of which.
struct Seen {
  uint64_t number, united, own;
};

// Blocks first to first + room of a union, in a buffer that begins with the first of them. Block i
// of the union that lies in a chunk c is the starts[c] + (blocks before it in the chunk) -th.
struct Union {
  const uint32_t* united;
  const uint32_t* prefix;
  const uint64_t* starts;
  uint64_t words, words_per_chunk, first, room;
};

// In pinned memory, of a communicator: what rest asks the host for, and what that answers. Windows
// are numbered over all sums; `blocks` of the type are in the newest.
struct Rest {
  uint32_t asked, answered;
  uint64_t blocks;
  uint32_t dtype;
  uint32_t failed, alone;  // all sums, from now on; those that would have to ask
  uint32_t lost;           // set where a sum ended for one of these reasons
};

// As in omnihvd/csrc/protocol/codec.h.
enum Quantizer : uint32_t { kPowers, kRandomLevels, kNearestLevel, kTernary, kSign, kTwoMeans };
struct Coding {
  uint32_t quantizer, bits;
};

constexpr uint64_t kNoResult = ~uint64_t(0);

// What one warp holds in registers. As long as a stripe (see omnihvd/csrc/protocol/layout.h), so
// that blocks that are sent together lie together.
constexpr uint32_t kTileBytes = 8192;
constexpr uint32_t kTileUnit = 128;
constexpr uint32_t kCompactThreads = 128;
constexpr uint32_t kScatterThreads = 256;
constexpr uint32_t kStrideThreads = 256;
constexpr uint32_t kWordThreads = 128;
constexpr uint64_t kWordCtas = 2048;
constexpr uint32_t kUniteThreads = 128;
constexpr uint64_t kUniteCtas = 1024;
constexpr uint64_t kScatterCtas = 1024;  // at most: fill any GPU, and go over the records in turns
constexpr uint64_t kPcieCtas = 32;
constexpr uint32_t kCodeThreads = 128;

// Of scale: elements of two bytes are either.
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

// A vector of 16 bytes for each thread and turn.
constexpr uint64_t stride_grid(uint64_t elements, uint32_t width) {
  const uint64_t per_cta = uint64_t(kStrideThreads) * (16 / width);
  return at_most(kScatterCtas, (elements + per_cta - 1) / per_cta);
}

// A block of up to 512 bytes is the work of some lanes of a warp, a longer one that of a warp.
constexpr uint64_t scatter_grid(uint64_t most, uint32_t width, uint32_t block_size) {
  const uint32_t lanes = block_size * width < 512 ? block_size * width / 16 : 32;
  const uint32_t per_cta = kScatterThreads / lanes;
  return at_most(kScatterCtas, (most + per_cta - 1) / per_cta);
}
#endif

}  // namespace kernels
}  // namespace omnihvd
