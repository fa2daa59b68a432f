// Memory that the ranks of one host have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "session/session.h"
#include "transport/file_descriptor.h"

namespace omnihvd {

// A file in /dev/shm that has no name any more, mapped; freed when the last rank has gone.
class Segment {
 public:
  // Collective. `bytes` for all ranks together and `bytes_each` for each rank (whole pages), all
  // zero. Null, on all ranks alike, when the ranks have no such memory in common (other hosts,
  // containers with a /dev/shm of their own, no room in it); `*obstacle` then says why. Throws
  // Error when the exchange fails.
  static std::unique_ptr<Segment> create(Exchange& exchange, size_t bytes, size_t bytes_each,
                                         std::string* obstacle);
  ~Segment();
  Segment(const Segment&) = delete;

  uint8_t* common() const { return memory_; }
  uint8_t* of(int rank) const { return memory_ + bytes_ + size_t(rank) * bytes_each_; }

  // The process of another rank has ended. The kernel tells: each rank holds a lock on a byte of
  // the file, which nobody inherits. Threads of one process see each other alive.
  bool has_ended(int rank) const;

 private:
  Segment(FileDescriptor file, uint8_t* memory, size_t bytes, size_t bytes_each,
          std::vector<bool> ours);

  const FileDescriptor file_;
  uint8_t* const memory_;
  const size_t bytes_, bytes_each_;
  const std::vector<bool> ours_;  // [rank] of this process
};

}  // namespace omnihvd
