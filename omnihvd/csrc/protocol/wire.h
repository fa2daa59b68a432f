// The wire format of a message: a header, then frames.
//
//   header   64 bytes, little endian; see Header. Its last 16 are a tag over everything else
//   shape    48 bytes, in contributions that hold a round 0
//   frame    see frame_bytes.h
//
// Only abort messages hold text instead of frames. Decoding trusts nothing: every size is checked
// against the message and the layout, and Error says what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/slice.h"
#include "protocol/frame.h"
#include "protocol/frame_bytes.h"
#include "protocol/layout.h"

namespace omnihvd {

constexpr uint32_t kMagic = 0x4456484F;  // "OHVD"
constexpr uint16_t kWireVersion = 7;

enum class Kind : uint8_t { contribution = 1, result = 2, abort = 3, leave = 4 };

// How messages of this kind code blocks.
inline Coding coding_of(Kind kind, const Codec& codec) {
  return kind == Kind::result ? sum_coding(codec) : contribution_coding(codec);
}

struct Header {
  Kind kind = Kind::contribution;
  uint16_t stream = 0;
  uint32_t from = 0;      // worker's rank, or aggregator's index in results
  uint64_t group = 0;     // random, made by the group's rank 0
  uint64_t number = 0;    // counts messages from this sender to this receiver, from 0; see finish()
  uint64_t sequence = 0;  // of the collective within its group, from 1; in aborts and leaves 1 if
                          // the sender knows that all members listen
  uint32_t frames = 0;    // or, in an abort, bytes of text
  uint32_t bytes = 0;     // of the whole message
  bool has_shape = false;
};
constexpr size_t kHeaderBytes = 64;
constexpr size_t kTagBytes = 16;
constexpr size_t kTagAt = kHeaderBytes - kTagBytes;
constexpr size_t kShapeBytes = 48;

// An outgoing message: its own bytes, and references to memory of others, so that dense blocks go
// to the wire without a copy.
class Message {
 public:
  // A message is closed before it would exceed this; frames are never split. With headers it fits
  // into one segment of UCX's shared memory (63 KiB).
  static constexpr size_t kFull = 60 * 1024;

  void begin(const Header& header, const Shape* shape);
  // True if the message now refers to memory of the frame's plain blocks, which must then live
  // until the message is sent; everything else is copied.
  bool add(const FrameBytes& frame);
  void add_text(const std::string& text);  // abort
  // Writes what is known last into the header; returns where its tag belongs.
  uint8_t* finish(uint64_t number);

  bool empty() const { return own_.empty(); }
  bool has_shape() const { return has_shape_; }
  size_t size() const { return size_; }
  uint32_t frames() const { return frames_; }
  // Valid until the message changes. The first slice begins with the header.
  const std::vector<Slice>& slices();

 private:
  struct Piece {
    const uint8_t* data;  // null: in own_, at offset
    size_t offset, size;
  };
  void own(const void* data, size_t size);
  void refer(const uint8_t* data, size_t size);

  std::vector<uint8_t> own_;
  std::vector<Piece> pieces_;
  std::vector<Slice> slices_;
  size_t size_ = 0;
  uint32_t frames_ = 0;
  bool has_shape_ = false;
};

[[noreturn]] void malformed(const char* what);  // throws Error

// Throws Error unless the bytes begin as a message of this version. Does not check the tag.
Header read_header(const uint8_t* data, size_t size);

// Reads a received message, front to back. `data` must outlive it and the frames it gives.
class MessageReader {
 public:
  // The positions that the message's sender has named in the window of a slot that is in this
  // round. May throw.
  using Named = std::function<Positions(uint32_t slot, uint32_t round)>;

  MessageReader(const uint8_t* data, size_t size);
  const Header& header() const { return header_; }
  bool has_shape() const { return header_.has_shape; }
  // Throws Error unless this build supports the shape.
  Shape shape();
  std::string text();
  // Is there another frame?
  bool more() const;
  // The aggregator role that the next frame belongs to, if frames name it.
  uint64_t seat() { return varint(); }
  // False if there are no more frames. `aggregator` names the stream that positions belong to;
  // `named` is null if no frame can be as_named. Memory that the frame refers to is valid until the
  // next call.
  bool next(const Layout& layout, uint32_t aggregator, const Named& named, Frame* frame);

 private:
  const uint8_t* take(size_t size);
  uint64_t remaining() const { return size_ - at_; }

  // For frames: frame_reader.cc.
  uint64_t varint();
  void read_positions(uint64_t end, uint64_t most, std::vector<uint64_t>* out);
  void read_exponents(Frame* frame);
  void read_forms(unsigned flags, size_t blocks);
  void read_listed(const Layout& layout, size_t last_elements, Frame* frame);
  const uint8_t* read_packed(uint32_t n, size_t element, uint32_t* bytes);
  const uint8_t* read_coded(const Shape& shape, uint32_t n, uint32_t* bytes);

  const uint8_t* data_;
  size_t size_;
  size_t at_;
  Header header_;
  uint32_t frames_left_;
  std::vector<uint64_t> positions_;
  std::vector<uint8_t> forms_;
  std::vector<uint32_t> numbers_;
};

}  // namespace omnihvd
