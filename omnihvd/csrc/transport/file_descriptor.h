// An open file descriptor, closed with its owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace omnihvd {

constexpr char kNoDescriptors[] = "no file descriptors are left, raise their number (ulimit -n)";

// Whether a call failed because this process or this host has no file descriptors left.
inline bool none_left(int error) { return error == EMFILE || error == ENFILE; }

class FileDescriptor {
 public:
  // Takes the result of the system call `origin`. Throws Error if the call failed.
  FileDescriptor(int fd, const char* origin) : fd_(fd) {
    if (fd >= 0) return;
    throw Error(std::string(origin) + " failed: " + std::strerror(errno) +
                (none_left(errno) ? std::string(": ") + kNoDescriptors : ""));
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  operator int() const { return fd_; }

 private:
  int fd_;
};

}  // namespace omnihvd
