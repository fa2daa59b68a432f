#include "protocol/wire.h"

#include <cstring>

#include "base/error.h"
#include "base/rare.h"

namespace omnihvd {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is the host's");

// Shorter runs are cheaper to copy than to refer to.
constexpr size_t kReferAtLeast = 2048;
constexpr uint8_t kHasShape = 1;

struct WireHeader {
  uint32_t magic;
  uint16_t version;
  uint8_t kind;
  uint8_t flags;
  uint16_t stream;
  uint16_t unused;
  uint32_t from;
  uint64_t group, number, sequence;
  uint32_t frames;
  uint32_t bytes;
  uint8_t tag[kTagBytes];
};
static_assert(sizeof(WireHeader) == kHeaderBytes && offsetof(WireHeader, tag) == kTagAt);

struct WireShape {
  uint64_t count;
  uint32_t dtype, block_size, aggregators, slots, window, stripe;
  uint8_t codec, codec_bits, codec_exact;
  uint8_t arithmetic;  // its kind, and 8 x its bits
  uint32_t seed, owner, unused;
};
static_assert(sizeof(WireShape) == kShapeBytes);

}  // namespace

void Message::own(const void* data, size_t size) {
  if (size == 0) return;
  const size_t offset = own_.size();
  own_.insert(own_.end(), static_cast<const uint8_t*>(data),
              static_cast<const uint8_t*>(data) + size);
  if (!pieces_.empty() && !pieces_.back().data &&
      pieces_.back().offset + pieces_.back().size == offset)
    pieces_.back().size += size;
  else
    pieces_.push_back({nullptr, offset, size});
  size_ += size;
}

void Message::refer(const uint8_t* data, size_t size) {
  pieces_.push_back({data, 0, size});
  size_ += size;
}

void Message::begin(const Header& header, const Shape* shape) {
  own_.clear();
  pieces_.clear();
  size_ = 0;
  frames_ = 0;
  WireHeader wire{};
  wire.magic = kMagic;
  wire.version = kWireVersion;
  wire.kind = uint8_t(header.kind);
  wire.flags = shape ? kHasShape : uint8_t(0);
  wire.stream = header.stream;
  wire.from = header.from;
  wire.group = header.group;
  wire.sequence = header.sequence;
  own(&wire, sizeof wire);
  has_shape_ = shape != nullptr;
  if (!shape) return;
  const WireShape s{shape->count,
                    uint32_t(shape->dtype),
                    shape->block_size,
                    shape->aggregators,
                    shape->slots,
                    shape->window,
                    shape->stripe,
                    uint8_t(shape->codec.kind),
                    shape->codec.bits,
                    shape->codec.of_sums,
                    uint8_t(unsigned(shape->arithmetic.kind) | shape->arithmetic.bits * 8u),
                    shape->codec.seed,
                    shape->owner,
                    0};
  own(&s, sizeof s);
}

bool Message::add(const FrameBytes& frame) {
  ++frames_;
  own(frame.head().data(), frame.head().size());
  for (const Slice& run : frame.packed()) own(run.data, run.size);
  if (frame.plain().empty()) return false;
  constexpr uint8_t zeros[8] = {};
  own(zeros, -size_ % 8);
  bool refers = false;
  for (const Slice& run : frame.plain()) {
    if (run.size < kReferAtLeast && !rarely(Rare::short_refer)) {
      own(run.data, run.size);
    } else {
      refer(static_cast<const uint8_t*>(run.data), run.size);
      refers = true;
    }
  }
  return refers;
}

void Message::add_text(const std::string& text) {
  own(text.data(), text.size());
  frames_ = uint32_t(text.size());
}

uint8_t* Message::finish(uint64_t number) {
  std::memcpy(own_.data() + offsetof(WireHeader, frames), &frames_, sizeof frames_);
  const uint32_t bytes = uint32_t(size_);
  std::memcpy(own_.data() + offsetof(WireHeader, bytes), &bytes, sizeof bytes);
  std::memcpy(own_.data() + offsetof(WireHeader, number), &number, sizeof number);
  return own_.data() + kTagAt;
}

const std::vector<Slice>& Message::slices() {
  slices_.clear();
  for (const Piece& piece : pieces_)
    slices_.push_back({piece.data ? piece.data : own_.data() + piece.offset, piece.size});
  return slices_;
}

void malformed(const char* what) { throw Error(std::string("malformed message: ") + what); }

Header read_header(const uint8_t* data, size_t size) {
  WireHeader wire;
  if (size < sizeof wire) malformed("shorter than a header");
  std::memcpy(&wire, data, sizeof wire);
  if (wire.magic != kMagic) malformed("not a message of omnihvd");
  if (wire.version != kWireVersion)
    throw Error("a peer speaks version " + std::to_string(wire.version) +
                " of the protocol, this " + "process version " + std::to_string(kWireVersion) +
                ": install the same omnihvd on all hosts");
  if (wire.kind < uint8_t(Kind::contribution) || wire.kind > uint8_t(Kind::leave))
    malformed("unknown kind");
  Header header;
  header.kind = Kind(wire.kind);
  header.stream = wire.stream;
  header.from = wire.from;
  header.group = wire.group;
  header.number = wire.number;
  header.sequence = wire.sequence;
  header.frames = wire.frames;
  header.bytes = wire.bytes;
  header.has_shape = wire.flags & kHasShape;
  return header;
}

MessageReader::MessageReader(const uint8_t* data, size_t size)
    : data_(data),
      size_(size),
      at_(kHeaderBytes),
      header_(read_header(data, size)),
      frames_left_(header_.frames) {}

const uint8_t* MessageReader::take(size_t size) {
  if (size > remaining()) malformed("ends early");
  const uint8_t* at = data_ + at_;
  at_ += size;
  return at;
}

Shape MessageReader::shape() {
  if (!header_.has_shape) malformed("no shape");
  WireShape wire;
  std::memcpy(&wire, take(sizeof wire), sizeof wire);
  if (wire.dtype >= kDTypes || wire.block_size == 0 || wire.block_size > 1u << 20 ||
      wire.aggregators == 0 || wire.slots == 0 || wire.slots > 1u << 22 || wire.stripe == 0 ||
      wire.window < wire.stripe || wire.window % wire.stripe ||
      uint64_t(wire.window) * wire.block_size > 1u << 28 || wire.count > 1ull << 56 ||
      (wire.owner != Shape::kAll && wire.aggregators != 1))
    malformed("impossible shape");
  Shape shape;
  shape.codec = {CodecKind(wire.codec), wire.codec_bits, wire.codec_exact != 0, wire.seed};
  if (!is_valid(shape.codec) || (shape.codec && !shape.codec.takes(DType(wire.dtype))))
    malformed("impossible codec");
  shape.arithmetic = {ArithmeticKind(wire.arithmetic % 8), uint8_t(wire.arithmetic / 8)};
  if (!shape.arithmetic.is_valid() || (shape.arithmetic && (!shape.arithmetic.admits(shape.codec) ||
                                                            !Arithmetic::takes(DType(wire.dtype)))))
    malformed("impossible arithmetic");
  shape.count = wire.count;
  shape.dtype = DType(wire.dtype);
  shape.block_size = wire.block_size;
  shape.aggregators = wire.aggregators;
  shape.slots = wire.slots;
  shape.window = wire.window;
  shape.stripe = wire.stripe;
  shape.owner = wire.owner;
  return shape;
}

std::string MessageReader::text() {
  return std::string(reinterpret_cast<const char*>(take(frames_left_)), frames_left_);
}

}  // namespace omnihvd
