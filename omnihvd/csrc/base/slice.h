// A piece of memory that somebody else owns.
#pragma once

#include <cstddef>

namespace omnihvd {

struct Slice {
  const void* data;
  size_t size;
};

}  // namespace omnihvd
