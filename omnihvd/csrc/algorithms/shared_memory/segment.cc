#include "algorithms/shared_memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>

#include "base/error.h"
#include "engine/on_all_ranks.h"

namespace omnihvd {
namespace {

void check(int result, const char* what) {
  if (result != 0) throw Error(std::string(what) + ": " + std::strerror(result));
}

std::string random_digits() {
  std::random_device random;
  char digits[25];
  std::snprintf(digits, sizeof digits, "%08x%08x%08x", random(), random(), random());
  return digits;
}

// A file's name, removed once its ranks have opened it.
struct Name {
  const std::string text;
  ~Name() { shm_unlink(text.c_str()); }
};

struct flock lock_of(int rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

void allocate(int file, size_t at, size_t bytes) {
  // A signal undoes a whole call where Linux is older than 6.11.
  constexpr size_t kPiece = 64 << 10;
  for (const size_t end = at + bytes; at < end;) {
    const size_t piece = std::min(kPiece, end - at);
    const int code = posix_fallocate(file, off_t(at), off_t(piece));
    if (code == EINTR) continue;
    check(code, "no room in /dev/shm");
    at += piece;
  }
}

}  // namespace

std::unique_ptr<Segment> Segment::create(Exchange& exchange, size_t bytes, size_t bytes_each,
                                         std::string* obstacle) {
  static const std::string process = random_digits();
  const int rank = exchange.rank(), ranks = exchange.size();
  const size_t all = bytes + size_t(ranks) * bytes_each;
  // All know it before rank 0 makes the file: if that rank is killed, another removes the file.
  const Name name{exchange.allgather("/omnihvd-" + random_digits())[0]};
  std::optional<FileDescriptor> file;
  *obstacle = on_all_ranks(exchange, [&] {
    if (rank != 0) return;
    file.emplace(shm_open(name.text.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600),
                 "shm_open");
    // Other programs need /dev/shm, too: if it fills up they get SIGBUS, as data loaders in
    // containers do.
    struct statvfs room{};
    if (fstatvfs(*file, &room) == 0 && room.f_blocks > 0 &&  // 0: without a limit
        all > uint64_t(room.f_bavail) * room.f_frsize / 2)
      throw Error(
          "no room in /dev/shm: at most half of what is free is taken (docker: --shm-size)");
    if (ftruncate(*file, off_t(all)) != 0) check(errno, "no room in /dev/shm");
    allocate(*file, 0, bytes);
  });
  std::unique_ptr<Segment> segment;
  if (obstacle->empty()) {
    std::vector<bool> ours;  // [rank] it is a thread of this process
    for (const std::string& theirs : exchange.allgather(process)) ours.push_back(theirs == process);
    *obstacle = on_all_ranks(exchange, [&] {
      if (rank != 0) file.emplace(shm_open(name.text.c_str(), O_RDWR | O_CLOEXEC, 0), "shm_open");
      // Each rank allocates its own part, so that it lies near the rank's core.
      allocate(*file, bytes + size_t(rank) * bytes_each, bytes_each);
      struct flock lock = lock_of(rank);
      if (fcntl(*file, F_SETLK, &lock) != 0) check(errno, "a lock in /dev/shm");
      void* const memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
      if (memory == MAP_FAILED) check(errno, "mmap");
      segment.reset(new Segment(std::move(*file), static_cast<uint8_t*>(memory), bytes, bytes_each,
                                std::move(ours)));
    });
  }
  if (!obstacle->empty()) segment.reset();
  return segment;
}

Segment::Segment(FileDescriptor file, uint8_t* memory, size_t bytes, size_t bytes_each,
                 std::vector<bool> ours)
    : file_(std::move(file)),
      memory_(memory),
      bytes_(bytes),
      bytes_each_(bytes_each),
      ours_(std::move(ours)) {}

Segment::~Segment() { munmap(memory_, bytes_ + ours_.size() * bytes_each_); }

bool Segment::has_ended(int rank) const {
  struct flock lock = lock_of(rank);
  return !ours_[size_t(rank)] && fcntl(file_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

}  // namespace omnihvd
