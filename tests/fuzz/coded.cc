// Tensors under a codec in a library's buffer, and what ranks tell each other of them
// (communicator/coded_buffer.h): refused by an Error, or within the buffer.
#include "base/bytes.h"
#include "communicator/coded_buffer.h"
#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

// The other rank says what the input says.
class Scripted : public Exchange {
 public:
  explicit Scripted(std::string theirs) : Exchange(0, 2), theirs_(std::move(theirs)) {}
  std::vector<std::string> allgather(const std::string& mine) override { return {mine, theirs_}; }

 private:
  const std::string theirs_;
};

static void read_buffer(fuzz::Input& in) {
  Bytes buffer;
  for (uint64_t tensors = in.between(0, 4); tensors > 0; --tensors) {
    const Codec codec{CodecKind(in.between(0, 8)), in.one_of<uint8_t>({0, 2, 4, 8}), false,
                      in.number<uint32_t>()};
    const uint32_t head = uint32_t(in.between(40, 80));
    const uint64_t count = in.between(0, 15) ? in.between(0, 40) : in.number<uint64_t>();
    const CodedHeader header = coded_header(codec, head, count, in.between(0, 15) == 0);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&header);
    buffer.insert(buffer.end(), bytes, bytes + sizeof header);
    buffer.resize(buffer.size() + in.between(0, 255));
  }
  if (in.flag()) buffer = in.rest();
  buffer.shrink_to_fit();
  fuzz::accepted([&] {
    CodedBuffer coded(buffer.data(), buffer.size());
    uint64_t floats = 0;
    for (const CodedRun& run : coded.runs(1, in.flag())) floats += run.count;
    MUST(floats * sizeof(float) == buffer.size());
    coded.clear_headers();
    coded.mark_summed();
  });
}

FUZZ(in) {
  if (in.flag()) return read_buffer(in);
  std::string theirs;
  if (in.flag()) {
    theirs = in.text();
  } else {
    BytesWriter out;
    out.text("");
    out.u64(in.between(0, 9));
    out.u64(in.number<uint8_t>());
    out.text(in.text());
    theirs = out.bytes();
  }
  Scripted exchange(theirs);
  const CodedWord mine{7, {{7, {CodecKind::natural, 0, false, 1}}}};
  fuzz::accepted([&] {
    const auto runs = agree_on_runs(exchange, mine, {"a", "b"});
    MUST(runs.size() == 1 && runs[0].count == 7 && runs[0].codec == mine.runs[0].codec);
  });
}
