// Memory that is kept between calls, because new memory costs page faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace omnihvd {

class Scratch {
 public:
  uint8_t* of(size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();  // frees first, so that there are never two
      bytes_ = 0;
      memory_.reset(new uint8_t[bytes]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t bytes_ = 0;
};

}  // namespace omnihvd
