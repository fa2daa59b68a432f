// Tensors under a codec, as they pass through a library that knows no codecs: as int32.
//
// A tensor travels as a header followed by its elements as float32. Libraries fuse int32 tensors
// only with other int32 tensors. So an int32 buffer that begins with a header either consists of
// such tensors, or was mixed with others and is refused. If any other library sums such a buffer,
// the headers change: their creator checks them to see whether all went well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/session.h"
#include "numeric/codec.h"

namespace omnihvd {

// The first bytes of a tensor. Any further bytes before its elements mean nothing.
struct CodedHeader {
  char magic[16];
  uint32_t header_bytes;  // a multiple of 4: the elements begin there
  uint8_t kind, bits;     // of the codec
  uint8_t state;          // kToSum or kSummed
  uint8_t unused;
  uint32_t seed;  // for the tensor and its step, the same on all ranks; 0: none
  uint32_t unused_too;
  uint64_t count;  // float32 that follow
  uint64_t check;  // of all of the above except state
};
static_assert(sizeof(CodedHeader) == 48);

CodedHeader coded_header(const Codec& codec, uint32_t header_bytes, uint64_t count, bool summed);

// Adjacent tensors that are summed together, headers included.
struct CodedRun {
  uint64_t count;  // float32
  Codec codec;
};

class CodedBuffer {
 public:
  static bool begins(const void* data, uint64_t bytes);
  // True if `data` is the int32 sum of buffers that began with a header on some ranks, at most this
  // many, and were zeros on the others.
  static bool begins_sum(const void* data, uint64_t bytes, int ranks);
  // Reads the headers; `data` must outlive this object. Throws Error if there is anything else.
  CodedBuffer(void* data, uint64_t bytes);

  // Groups tensors of one codec. Their seeds tell apart runs that differ between ranks. number:
  // counts such sums on this communicator. each_by_itself: a tensor's sum does not depend on what
  // it was fused with.
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

// A rank's contribution to a sum of int32: either tensors under codecs, or other numbers. If other
// ranks have such tensors, the numbers must be zeros, as for a rank without more data (hvd.join()).
struct CodedWord {
  uint64_t count;
  std::vector<CodedRun> runs = {};
  bool zeros = false;
  std::string problem = {};
};

// Collective. Returns what all ranks sum; empty: plain int32. Throws Error, on all ranks.
std::vector<CodedRun> agree_on_runs(Exchange& exchange, const CodedWord& mine,
                                    const std::vector<std::string>& hosts);

}  // namespace omnihvd
