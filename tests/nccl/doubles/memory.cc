#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace doubles {
namespace {

constexpr uint8_t kGuard = 0xa5;
constexpr size_t kGuardBytes = 4096;

struct Piece {
  uint8_t *device, *host;
  size_t bytes;
  Kind kind;
  size_t mapped() const { return bytes + kGuardBytes; }
};

std::mutex mutex;
std::map<uint64_t, Piece>& by_device() {
  static auto& map = *new std::map<uint64_t, Piece>;
  return map;
}

uint64_t number(const void* p) { return reinterpret_cast<uint64_t>(p); }

uint8_t* map(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<uint8_t*>(p);
}

// The piece that has [address, address + bytes), by what `base` says of each; null: none.
template <typename Base>
const Piece* find(uint64_t address, size_t bytes, Base base) {
  for (const auto& [_, piece] : by_device()) {
    const uint64_t first = number(base(piece));
    if (address >= first && address + bytes <= first + piece.bytes) return &piece;
  }
  return nullptr;
}

uint8_t* device_base(const Piece& p) { return p.device; }
uint8_t* host_base(const Piece& p) { return p.kind == Kind::pinned ? p.host : nullptr; }

}  // namespace

uint8_t* allocate(size_t bytes, Kind kind) {
  Piece piece{nullptr, nullptr, bytes, kind};
  piece.device = map(piece.mapped(), PROT_NONE);
  piece.host = map(piece.mapped(), PROT_READ | PROT_WRITE);
  if (piece.device == nullptr || piece.host == nullptr) return nullptr;
  std::fill_n(piece.host, piece.mapped(), kGuard);  // memory is not zero on a GPU either
  const std::lock_guard<std::mutex> lock(mutex);
  by_device()[number(piece.device)] = piece;
  return kind == Kind::device ? piece.device : piece.host;
}

bool release(void* address, Kind kind) {
  Piece piece;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const Piece* found = kind == Kind::device ? find(number(address), 0, device_base)
                                              : find(number(address), 0, host_base);
    if (found == nullptr || found->kind != kind) return false;
    piece = *found;
    by_device().erase(number(piece.device));
  }
  if (address != (kind == Kind::device ? piece.device : piece.host)) return false;
  if (!std::all_of(piece.host + piece.bytes, piece.host + piece.mapped(),
                   [](uint8_t byte) { return byte == kGuard; }))
    die("something was written behind the end of an allocation");
  munmap(piece.device, piece.mapped());
  munmap(piece.host, piece.mapped());
  return true;
}

uint8_t* host_of(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const Piece* piece = find(address, bytes, device_base);
  return piece == nullptr ? nullptr : piece->host + (address - number(piece->device));
}

uint64_t device_of(const void* host) {
  const std::lock_guard<std::mutex> lock(mutex);
  const Piece* piece = find(number(host), 0, host_base);
  return piece == nullptr ? 0 : number(piece->device) + (number(host) - number(piece->host));
}

bool is_pinned(const void* host, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  return find(number(host), bytes, host_base) != nullptr;
}

size_t live_pieces() {
  const std::lock_guard<std::mutex> lock(mutex);
  return by_device().size();
}

void die(const char* what) {
  std::fprintf(stderr, "CUDA double: %s\n", what);
  std::abort();
}

}  // namespace doubles
