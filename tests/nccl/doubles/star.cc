#include "star.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

extern "C" void double_die(const char* what);

namespace doubles {
namespace {

bool send_all(int socket, const void* data, size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= size_t(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= size_t(got);
  }
  return true;
}

bool send_bytes(int socket, const Bytes& bytes) {
  const uint64_t size = bytes.size();
  return send_all(socket, &size, sizeof size) && send_all(socket, bytes.data(), size);
}

bool receive_bytes(int socket, Bytes* bytes) {
  uint64_t size = 0;
  if (!receive_all(socket, &size, sizeof size)) return false;
  bytes->resize(size);
  return receive_all(socket, bytes->data(), size);
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) double_die("a socket's path is too long");
  std::strcpy(address.sun_path, path.c_str());
  return address;
}

}  // namespace

Star::Star(const std::string& path, int rank, int size)
    : rank_(rank), size_(size), peers_(size_t(rank == 0 ? size : 1), -1) {
  const sockaddr_un address = address_of(path);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  if (rank == 0) {
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // Under its name only once it listens.
    const std::string early = path + ".";
    const sockaddr_un before = address_of(early);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&before), sizeof before) != 0 ||
        listen(listener, 64) != 0 || rename(early.c_str(), path.c_str()) != 0)
      double_die("NCCL's double cannot listen");
    const timeval patience{60, 0};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (int i = 1; i < size; ++i) {
      const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int who = 0;
      if (peer < 0 || !receive_all(peer, &who, sizeof who))
        double_die("a rank did not come to ncclCommInitRank");
      peers_[size_t(who)] = peer;
    }
    close(listener);
    unlink(path.c_str());
    return;
  }
  peers_[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (int tries = 0; connect(peers_[0], where, sizeof address) != 0; ++tries) {
    if (tries == 60000) double_die("rank 0 did not come to ncclCommInitRank");
    usleep(1000);
  }
  send_all(peers_[0], &rank, sizeof rank);
}

Star::~Star() {
  for (const int peer : peers_)
    if (peer >= 0) close(peer);
}

bool Star::exchange(const std::string& what, const Bytes& mine, const Combine& combine,
                    Bytes* result) {
  if (rank_ != 0)
    return send_bytes(peers_[0], what) && send_bytes(peers_[0], mine) &&
           receive_bytes(peers_[0], result);
  std::vector<Bytes> all{mine};
  for (int rank = 1; rank < size_; ++rank) {
    Bytes theirs;
    all.emplace_back();
    if (!receive_bytes(peers_[size_t(rank)], &theirs) ||
        !receive_bytes(peers_[size_t(rank)], &all.back()))
      return false;
    if (theirs != what)
      double_die(("ranks call different collectives: " + what + ", " + theirs).c_str());
  }
  const std::vector<Bytes> results = combine(all);
  *result = results[0];
  bool reached = true;
  for (int rank = 1; rank < size_; ++rank)
    reached = send_bytes(peers_[size_t(rank)], results[size_t(rank)]) && reached;
  return reached;
}

void Star::abort() {
  for (const int peer : peers_)
    if (peer >= 0) shutdown(peer, SHUT_RDWR);
}

}  // namespace doubles
