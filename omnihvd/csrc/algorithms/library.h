// The intercepted library, as the algorithms need it: MPI, Gloo, ...
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnihvd {

// Lives for one call and knows its dtype and communicator. All functions but rank() and size() are
// collective, work on host memory, and throw Error.
class Library {
 public:
  virtual ~Library() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Makes the call's own operation. Allreduce: out = the sum over the ranks of `in`; in == out: in
  // place. Reduce-scatter: out = this rank's share of the sum of all of `in`.
  virtual void run(const void* in, void* out, uint64_t count) = 0;
  // The bitwise or over the ranks, in place.
  virtual void unite(uint8_t* bits, size_t bytes) = 0;
  // Broadcasts rank 0's bytes.
  virtual void tell(void* data, size_t bytes) = 0;
};

}  // namespace omnihvd
