// Messages as seen by Python.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "protocol/wire.h"

namespace omnihvd {

// An outgoing message that is not sent yet. bytes() reads the referenced memory anew each time, so
// that a test notices if that changes too early.
class PyMessage {
 public:
  void add(const Frame& frame, const Layout& layout, uint32_t aggregator) {
    FrameBytes bytes;
    bytes.encode(frame, layout, aggregator);
    refers_ |= message_.add(bytes);
    frames_.emplace_back(frame.slot, frame.round);
  }
  Message& message() { return message_; }
  bool refers() const { return refers_; }  // as add() of its frames said
  const std::vector<std::pair<uint32_t, uint32_t>>& frames() const { return frames_; }

  pybind11::bytes bytes(uint64_t number = 0) {
    message_.finish(number);
    std::string bytes;
    for (const Slice& slice : message_.slices())
      bytes.append(static_cast<const char*>(slice.data), slice.size);
    return bytes;
  }

 private:
  Message message_;
  bool refers_ = false;
  std::vector<std::pair<uint32_t, uint32_t>> frames_;  // slot, round
};

// A received message in memory of exactly its size, so that a sanitizer sees reads beyond it.
class Received {
 public:
  explicit Received(const pybind11::bytes& message) {
    const std::string_view view = message;
    bytes_.reset(new uint8_t[view.size()]);
    std::copy(view.begin(), view.end(), bytes_.get());
    size_ = view.size();
  }
  MessageReader reader() const { return {bytes_.get(), size_}; }
  MessageReader reader(Kind kind) const {
    MessageReader reader(bytes_.get(), size_);
    if (reader.header().kind != kind) throw Error("a message of another kind");
    return reader;
  }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_;
};

}  // namespace omnihvd
