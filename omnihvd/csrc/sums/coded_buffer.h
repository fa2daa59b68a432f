// Tensors under a codec, as they come through a library that knows no codecs: as int32.
//
// A tensor travels as a header, then its elements as float32. Libraries fuse tensors of int32 with
// others of int32 only; so a buffer of these that begins with a header consists of such tensors, or
// has been mixed with others, and is refused. Were such a buffer summed by anybody else, the
// headers would no longer be what they were: who made them sees by them that all went well.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/codec.h"

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

class CodedBuffer {
 public:
  static bool begins(const void* data, uint64_t bytes);
  // Reads the headers; `data` must live as long. Throws Error if there is anything else.
  CodedBuffer(void* data, uint64_t bytes);

  // For messages, and to be compared by the ranks: "natural", "int8,sign". No blanks.
  std::string codecs() const;

  // Sums in place, calling sum(float32, count, codec) for runs of tensors of one codec; the seeds
  // tell runs apart that are not the same on all ranks. number: of such sums on this communicator.
  // each_by_itself: a tensor's sum does not depend on what it was fused with.
  using Sum = std::function<void(void* data, uint64_t count, const Codec& codec)>;
  void sum(uint64_t number, bool each_by_itself, const Sum& sum);

  void mark_summed();  // there are no other ranks

 private:
  struct Part {
    uint8_t* begin;
    CodedHeader header;
    uint64_t bytes() const { return header.header_bytes + header.count * sizeof(float); }
    Codec codec() const { return {CodecKind(header.kind), header.bits, false, header.seed}; }
  };
  void sum_run(size_t first, size_t end, const Codec& codec, const Sum& sum);
  std::vector<Part> parts_;
};

}  // namespace omnihvd
