// Horovod's Gloo as the library for the algorithms (algorithms/library.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "algorithms/library.h"
#include "intercept/gloo/exchange.h"

namespace omnihvd {

// Allreduces only; GlooScatters makes whole reduce-scatters.
class GlooSums : public Library {
 public:
  // For one call; object: the one that the call was made on.
  GlooSums(GlooAlgorithms& object, size_t element, GlooExchange& exchange)
      : object_(object), element_(element), exchange_(exchange) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }

  void run(const void* in, void* out, uint64_t count) override {
    if (in != out) std::memcpy(out, in, count * element_);
    HorovodLibrary::original(object_).allreduce(&object_, out, static_cast<int>(count), kGlooSum);
  }

  void unite(uint8_t* bits, size_t bytes) override {
    const std::string mine(reinterpret_cast<const char*>(bits), bytes);
    for (const std::string& theirs : exchange_.allgather(mine))
      std::transform(theirs.begin(), theirs.end(), bits, bits,
                     [](char a, uint8_t b) { return static_cast<uint8_t>(a | b); });
  }

  void tell(void* data, size_t bytes) override {
    const std::string mine(static_cast<const char*>(data), bytes);
    std::memcpy(data, exchange_.allgather(mine)[0].data(), bytes);
  }

 protected:
  GlooAlgorithms& object_;
  const size_t element_;

 private:
  GlooExchange& exchange_;
};

class GlooScatters : public GlooSums {
 public:
  GlooScatters(GlooAlgorithms& object, size_t element, GlooExchange& exchange,
               std::vector<int>& counts)
      : GlooSums(object, element, exchange), counts_(counts) {}

  // In place.
  void run(const void*, void* out, uint64_t) override {
    HorovodLibrary::original(object_).reducescatter(&object_, out, counts_);
  }

 private:
  std::vector<int>& counts_;
};

}  // namespace omnihvd
