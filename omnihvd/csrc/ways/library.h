// The library that omnihvd stands in for, as the ways need it: MPI, Gloo, ...
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// For the time of one call: it knows the call's dtype and communicator. All functions but
// rank() and size() are collective, on host memory, and throw Error.
class Library {
 public:
  virtual ~Library() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // out = the sum over the ranks of `in`; in == out: in place.
  virtual void sum(const void* in, void* out, uint64_t count) = 0;
  // The bitwise or over the ranks, in place.
  virtual void unite(uint8_t* bits, size_t bytes) = 0;
  // Rank 0's bytes, to all.
  virtual void tell(void* data, size_t bytes) = 0;
};

}  // namespace omnihvd
