// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/session.h"
#include "transport/file_descriptor.h"

namespace omnihvd {

// A mapped file in /dev/shm without a name; freed when the last rank has gone.
class Segment {
 public:
  // Collective. `bytes` for all ranks together and `bytes_each` for each rank (whole pages), all
  // zero. Returns null, on all ranks alike, if the ranks cannot share memory (other hosts,
  // containers with their own /dev/shm, no room in it); `*obstacle` then says why. Throws Error if
  // the exchange fails.
  static std::unique_ptr<Segment> create(Exchange& exchange, size_t bytes, size_t bytes_each,
                                         std::string* obstacle);
  ~Segment();
  Segment(const Segment&) = delete;

  uint8_t* common() const { return memory_; }
  uint8_t* of(int rank) const { return memory_ + bytes_ + size_t(rank) * bytes_each_; }

  // Has the process of another rank ended? The kernel tells: each rank holds a lock on a byte of
  // the file, which no child inherits. Threads of one process see each other alive.
  bool has_ended(int rank) const;

 private:
  Segment(FileDescriptor file, uint8_t* memory, size_t bytes, size_t bytes_each,
          std::vector<bool> ours);

  const FileDescriptor file_;
  uint8_t* const memory_;
  const size_t bytes_, bytes_each_;
  const std::vector<bool> ours_;  // [rank] is in this process
};

}  // namespace omnihvd
