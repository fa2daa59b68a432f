#include "communicator/coded_buffer.h"

#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "communicator/meeting.h"

namespace omnihvd {
namespace {

constexpr char kMagic[16] = "omnihvd codec 1";
constexpr uint8_t kToSum = 1, kSummed = 2;

uint64_t check_of(CodedHeader header) {
  header.state = 0;
  return fnv1a(&header, offsetof(CodedHeader, check));
}

std::string packed(const CodedWord& word) {
  BytesWriter out;
  out.text(word.problem);
  out.u64(word.count);
  out.u64(word.zeros);
  out.text({reinterpret_cast<const char*>(word.runs.data()), word.runs.size() * sizeof(CodedRun)});
  return out.bytes();
}

CodedWord unpacked(const std::string& bytes) {
  BytesReader in(bytes);
  CodedWord word;
  word.problem = in.text();
  word.count = in.u64();
  word.zeros = in.number<bool>();
  const std::string runs = in.text();
  word.runs.resize(runs.size() / sizeof(CodedRun));
  runs.copy(reinterpret_cast<char*>(word.runs.data()), word.runs.size() * sizeof(CodedRun));
  for (const CodedRun& run : word.runs)
    if (!is_valid(run.codec)) BytesReader::too_large();
  return word;
}

// "100 float32 by natural, 20 float32 by sign"
std::string text_of(const CodedWord& word) {
  if (word.runs.empty()) return std::to_string(word.count) + " int32";
  std::string text;
  for (const CodedRun& run : word.runs)
    text += (text.empty() ? "" : ", ") + sum_text(run.count, DType::f32, run.codec);
  return text;
}

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

bool CodedBuffer::begins_sum(const void* data, uint64_t bytes, int ranks) {
  if (bytes < sizeof(CodedHeader)) return false;
  uint32_t magic[4], sum[4];
  std::memcpy(magic, kMagic, sizeof magic);
  std::memcpy(sum, data, sizeof sum);
  for (uint32_t having = 1; having <= uint32_t(ranks); ++having) {
    bool equal = true;
    for (int i = 0; i < 4; ++i) equal = equal && sum[i] == magic[i] * having;
    if (equal) return true;
  }
  return false;
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
      throw Error(
          "a tensor under a codec is damaged, or of another version: install the same omnihvd on "
          "all hosts");
    at += part.bytes();
    bytes -= part.bytes();
    parts_.push_back(part);
  }
}

std::vector<CodedRun> CodedBuffer::runs(uint64_t number, bool each_by_itself) const {
  std::vector<CodedRun> runs;
  for (size_t first = 0, end = 0; first < parts_.size(); first = end) {
    uint64_t tensors = fnv1a(&number, sizeof number), bytes = 0;
    Codec codec = parts_[first].codec();
    do {
      tensors = fnv1a(&parts_[end].header, sizeof(CodedHeader), tensors);
      bytes += parts_[end].bytes();
      ++end;
    } while (!each_by_itself && end < parts_.size() &&
             parts_[end].header.kind == parts_[first].header.kind &&
             parts_[end].header.bits == parts_[first].header.bits);
    if (!each_by_itself || codec.seed == 0) codec.seed = uint32_t(tensors ^ tensors >> 32);
    runs.push_back({bytes / sizeof(float), codec});
  }
  return runs;
}

void CodedBuffer::clear_headers() {
  for (Part& part : parts_) std::memset(part.begin, 0, part.header.header_bytes);
}

// The block with a header's last bytes may come back with noise in them; they mean nothing.
void CodedBuffer::mark_summed() {
  for (Part& part : parts_) {
    part.header.state = kSummed;
    std::memcpy(part.begin, &part.header, sizeof(CodedHeader));
  }
}

std::vector<CodedRun> agree_on_runs(Exchange& exchange, const CodedWord& mine,
                                    const std::vector<std::string>& hosts) {
  std::vector<CodedWord> words;
  std::vector<std::string> sums;
  size_t coded = 0;
  for (const std::string& theirs : exchange.allgather(packed(mine))) {
    words.push_back(unpacked(theirs));
    const CodedWord& word = words.back();
    if (!word.problem.empty())
      throw Error("rank " + std::to_string(sums.size()) + ": " + word.problem);
    sums.push_back(text_of(word));
    if (words[coded].runs.empty() && !word.runs.empty()) coded = words.size() - 1;
  }
  for (size_t rank = 0; rank < words.size(); ++rank)
    if (words[rank].runs.empty() && words[rank].zeros && words[rank].count == words[coded].count)
      sums[rank] = sums[coded];
  check_same(sums, hosts);
  return words[coded].runs;
}

}  // namespace omnihvd
