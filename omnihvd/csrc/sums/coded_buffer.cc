#include "sums/coded_buffer.h"

#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr char kMagic[16] = "omnihvd codec 1";
constexpr uint8_t kToSum = 1, kSummed = 2;

// FNV-1a.
uint64_t digest(const void* data, size_t bytes, uint64_t so_far = 0xCBF29CE484222325ull) {
  const auto* const at = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) so_far = (so_far ^ at[i]) * 0x100000001B3ull;
  return so_far;
}

uint64_t check_of(CodedHeader header) {
  header.state = 0;
  return digest(&header, offsetof(CodedHeader, check));
}

uint32_t folded(uint64_t x) { return uint32_t(x ^ x >> 32); }

}  // namespace

CodedHeader coded_header(const Codec& codec, uint32_t header_bytes, uint64_t count, bool summed) {
  CodedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.header_bytes = header_bytes;
  header.kind = uint8_t(codec.kind);
  header.bits = codec.bits;
  header.seed = codec.seed;
  header.count = count;
  header.check = check_of(header);
  header.state = summed ? kSummed : kToSum;
  return header;
}

bool CodedBuffer::begins(const void* data, uint64_t bytes) {
  return bytes >= sizeof(CodedHeader) && std::memcmp(data, kMagic, sizeof kMagic) == 0;
}

CodedBuffer::CodedBuffer(void* data, uint64_t bytes) {
  auto* at = static_cast<uint8_t*>(data);
  while (bytes > 0) {
    if (!begins(at, bytes))
      throw Error(
          "a tensor of int32 was fused with tensors under a codec, which are int32 to "
          "Horovod: reduce it as another type, or at another time");
    Part part{at, {}};
    std::memcpy(&part.header, at, sizeof part.header);
    const CodedHeader& h = part.header;
    if (h.check != check_of(h) || h.state != kToSum || h.header_bytes < sizeof h ||
        h.header_bytes % sizeof(float) || h.header_bytes > bytes ||
        h.count > (bytes - h.header_bytes) / sizeof(float) || !is_valid(part.codec()) ||
        !part.codec())
      throw Error("a tensor under a codec is damaged, or of another version of omnihvd");
    at += part.bytes();
    bytes -= part.bytes();
    parts_.push_back(part);
  }
}

std::string CodedBuffer::codecs() const {
  std::string names;
  const Part* before = nullptr;
  for (const Part& part : parts_) {
    if (!before || name_of(before->codec()) != name_of(part.codec()))
      names += (before ? "," : "") + name_of(part.codec());
    before = &part;
  }
  return names;
}

void CodedBuffer::sum(uint64_t number, bool each_by_itself, const Sum& sum) {
  for (size_t first = 0; first < parts_.size();) {
    size_t end = first;
    uint64_t tensors = digest(&number, sizeof number);
    Codec codec = parts_[first].codec();
    do {
      tensors = digest(&parts_[end].header, sizeof(CodedHeader), tensors);
      ++end;
    } while (!each_by_itself && end < parts_.size() &&
             parts_[end].header.kind == parts_[first].header.kind &&
             parts_[end].header.bits == parts_[first].header.bits);
    if (!each_by_itself || codec.seed == 0) codec.seed = folded(tensors);
    sum_run(first, end, codec, sum);
    first = end;
  }
}

void CodedBuffer::sum_run(size_t first, size_t end, const Codec& codec, const Sum& sum) {
  uint64_t bytes = 0;
  for (size_t i = first; i < end; ++i) {
    std::memset(parts_[i].begin, 0, parts_[i].header.header_bytes);  // zero blocks, or nearly so
    bytes += parts_[i].bytes();
  }
  sum(parts_[first].begin, bytes / sizeof(float), codec);
  for (size_t i = first; i < end; ++i) {
    // A block with the header's last bytes may have come back with noise in them: they mean
    // nothing.
    parts_[i].header.state = kSummed;
    std::memcpy(parts_[i].begin, &parts_[i].header, sizeof(CodedHeader));
  }
}

void CodedBuffer::mark_summed() {
  for (Part& part : parts_) {
    part.header.state = kSummed;
    std::memcpy(part.begin, &part.header, sizeof(CodedHeader));
  }
}

}  // namespace omnihvd
