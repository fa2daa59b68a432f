// An algorithm in a plugin: the library sums only those chunks of a tensor that are not zero on all
// ranks. Unlike the algorithm "union" it copies nothing, and sends the zeros inside a chunk.
// HACKING.md says how to build it and how a job uses it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "algorithms/algorithm.h"
#include "base/plugin.h"

namespace omnihvd {
namespace {

class Chunks final : public Algorithm {
 public:
  explicit Chunks(const Settings& agreed) : chunk_(uint64_t{64} * agreed.block_size) {}

  Reason can(const Call& call) const override {
    return call.scatters() || call.codec ? Reason::op : Reason::none;
  }

  SumMade run(const Call& call, Library& library) override {
    const auto* const in = static_cast<const char*>(call.in);
    auto* const out = static_cast<char*>(call.out);
    const uint64_t element = size_of(call.dtype), chunks = (call.count + chunk_ - 1) / chunk_;
    const auto elements = [&](uint64_t i) { return std::min(chunk_, call.count - i * chunk_); };

    // Which chunks are not zero here, then on any rank.
    std::vector<uint8_t> bits((chunks + 7) / 8);
    for (uint64_t i = 0; i < chunks; ++i) {
      const char* const at = in + i * chunk_ * element;
      if (std::any_of(at, at + elements(i) * element, [](char c) { return c != 0; }))
        bits[i / 8] |= uint8_t(1 << i % 8);
    }
    library.unite(bits.data(), bits.size());

    uint64_t united = 0;
    for (uint64_t i = 0; i < chunks; ++i) {
      const uint64_t at = i * chunk_ * element;
      if (bits[i / 8] >> i % 8 & 1) {
        library.run(in + at, out + at, elements(i));
        united += chunk_;
      } else if (in != out) {
        std::memset(out + at, 0, elements(i) * element);
      }
    }
    return {Way::plugin, std::min(united, call.count) / (chunk_ / 64)};
  }

  // The library's calls wait, and fail, as they do without omnihvd.
  void set_timeout(double) override {}
  void fail(const std::string&) override {}

 private:
  const uint64_t chunk_;  // elements
};

void registers() {
  register_algorithm("chunks", [](Exchange&, const Settings& agreed, const auto&) {
    return std::make_unique<Chunks>(agreed);
  });
}

}  // namespace
}  // namespace omnihvd

OMNIHVD_PLUGIN(omnihvd::registers)
