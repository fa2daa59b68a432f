// Tensors under a codec, as they come through a library that knows no codecs: as int32.
//
// A tensor travels as a header, then its elements as float32. Libraries fuse tensors of int32 with
// others of int32 only; so a buffer of these that begins with a header consists of such tensors, or
// has been mixed with others, and is refused. Were such a buffer summed by anybody else, the
// headers would no longer be what they were: who made them sees by them that all went well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "session/session.h"

namespace omnihvd {

// The first bytes of a tensor; what follows up to its elements is of no meaning.
struct CodedHeader {
  char magic[16];
  uint32_t header_bytes;  // a multiple of 4: the elements begin there
  uint8_t kind, bits;     // of the codec
  uint8_t state;          // kToSum or kSummed
  uint8_t unused;
  uint32_t seed;  // of the tensor and its step, the same on all ranks; 0: none
  uint32_t unused_too;
  uint64_t count;  // float32 that follow
  uint64_t check;  // of all of the above, state apart
};
static_assert(sizeof(CodedHeader) == 48);

CodedHeader coded_header(const Codec& codec, uint32_t header_bytes, uint64_t count, bool summed);

// Neighbours that are summed at once, headers and all.
struct CodedRun {
  uint64_t count;  // float32
  Codec codec;
};

class CodedBuffer {
 public:
  static bool begins(const void* data, uint64_t bytes);
  // True where `data` is the sum, as int32, of buffers that began so on some of at most that many
  // ranks, and were zeros on the others.
  static bool begins_sum(const void* data, uint64_t bytes, int ranks);
  // Reads the headers; `data` must live as long. Throws Error if there is anything else.
  CodedBuffer(void* data, uint64_t bytes);

  // Of tensors of one codec; their seeds tell runs apart that are not the same on all ranks.
  // number: of such sums on this communicator. each_by_itself: a tensor's sum does not depend on
  // what it was fused with.
  std::vector<CodedRun> runs(uint64_t number, bool each_by_itself) const;

  void clear_headers();  // before the sum: zero blocks, or nearly so
  void mark_summed();    // after it; or there are no other ranks

 private:
  struct Part {
    uint8_t* begin;
    CodedHeader header;
    uint64_t bytes() const { return header.header_bytes + header.count * sizeof(float); }
    Codec codec() const { return {CodecKind(header.kind), header.bits, false, header.seed}; }
  };
  std::vector<Part> parts_;
};

// What a rank has in a sum of int32: tensors under codecs; or other numbers, which have to be zeros
// where the others have such tensors, as those of a rank that has no more data (hvd.join()).
struct CodedWord {
  uint64_t count;
  std::vector<CodedRun> runs = {};
  bool zeros = false;
  std::string problem = {};
};

// Collective: what all ranks sum; empty: just int32. Throws Error, on all ranks.
std::vector<CodedRun> agree_on_runs(Exchange& exchange, const CodedWord& mine,
                                    const std::vector<std::string>& hosts);

}  // namespace omnihvd
