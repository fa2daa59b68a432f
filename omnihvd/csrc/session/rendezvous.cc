#include "session/rendezvous.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"

namespace omnihvd {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr auto kPatienceWithOld = std::chrono::seconds(5);  // with those that may have died
constexpr uint32_t kLongest = 1u << 26;

// A TCP connection that gives up after a while. Throws Error with the aggregator's name.
class Connection {
 public:
  Connection(const std::string& address, std::chrono::seconds patience)
      : name_("aggregator " + address), deadline_(std::chrono::steady_clock::now() + patience) {
    const size_t colon = address.rfind(':');
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = getaddrinfo(address.substr(0, colon).c_str(),
                                   address.substr(colon + 1).c_str(), &hints, &found);
    if (status) throw Error(name_ + ": " + gai_strerror(status) + "; check OMNIHVD_AGGREGATORS");
    int reason = 0;
    for (const addrinfo* at = found; at && socket_ < 0; at = at->ai_next) reason = open(*at);
    freeaddrinfo(found);
    if (socket_ < 0)
      throw Error(name_ + ": " + std::strerror(reason) +
                  "; is `omnihvd aggregator` running there, and reachable?");
  }
  Connection(const Connection&) = delete;
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }

  void send(const std::string& message) {
    const uint32_t size = uint32_t(message.size());
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += message;
    for (size_t at = 0; at < bytes.size();) {
      wait(POLLOUT);
      const ssize_t n = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n < 0 && errno != EINTR && errno != EAGAIN) fail(std::strerror(errno));
      if (n > 0) at += size_t(n);
    }
  }

  // The rest of an answer that begins with "ok".
  std::string answer() {
    uint32_t size;
    const std::string length = receive(sizeof size);
    std::memcpy(&size, length.data(), sizeof size);
    if (size < 2 || size > kLongest) fail("it speaks another protocol");
    const std::string message = receive(size);
    if (message.compare(0, 2, "ok")) fail(message.substr(2));
    return message.substr(2);
  }

  [[noreturn]] void fail(const std::string& why) const { throw Error(name_ + ": " + why); }

  std::string nonces;  // of this conversation

 private:
  int open(const addrinfo& at) {
    socket_ = ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0) return errno;
    int reason = ::connect(socket_, at.ai_addr, at.ai_addrlen) ? errno : 0;
    if (reason == EINPROGRESS) {
      pollfd ready{socket_, POLLOUT, 0};
      socklen_t size = sizeof reason;
      reason = ::poll(&ready, 1, remaining_ms()) > 0 ? 0 : ETIMEDOUT;
      if (!reason) ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &reason, &size);
    }
    if (reason) ::close(std::exchange(socket_, -1));
    return reason;
  }

  int remaining_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline_ - std::chrono::steady_clock::now());
    return int(std::max<int64_t>(0, left.count()));
  }

  void wait(short events) {
    pollfd ready{socket_, events, 0};
    if (::poll(&ready, 1, remaining_ms()) == 0) fail("it does not answer");
  }

  std::string receive(size_t size) {
    std::string bytes(size, '\0');
    for (size_t at = 0; at < size;) {
      wait(POLLIN);
      const ssize_t n = ::recv(socket_, &bytes[at], size - at, 0);
      if (n == 0) fail("it closed the connection; its log says why");
      if (n < 0 && errno != EINTR && errno != EAGAIN) fail(std::strerror(errno));
      if (n > 0) at += size_t(n);
    }
    return bytes;
  }

  const std::string name_;
  const std::chrono::steady_clock::time_point deadline_;
  int socket_ = -1;
};

std::string proof(const std::string& secret, const std::string& who, const std::string& what) {
  return to_string(hmac_sha256(secret, who + what));
}

void introduce(Connection& connection, const std::string& secret, Node* node) {
  const std::string ours = random_bytes(32);
  connection.send("omnihvd-join 1\n" + ours);
  const std::string answer = connection.answer();
  if (answer.size() != 64) connection.fail("it speaks another protocol");
  connection.nonces = ours + answer.substr(0, 32);
  if (!equal_in_constant_time(answer.substr(32), proof(secret, "aggregator", connection.nonces)))
    connection.fail("it has another secret: OMNIHVD_SECRET must be the same everywhere");
  connection.send(proof(secret, "worker", connection.nonces));
  const std::string addresses = connection.answer();
  BytesReader in(addresses);
  while (!in.at_end()) node->addresses.push_back(in.text());
  if (node->addresses.empty()) connection.fail("it has no transport");
}

std::mutex mutex;  // guards old_ones()
std::set<std::string>& old_ones() {
  static auto& all = *new std::set<std::string>;
  return all;
}

bool is_old(const std::string& address) {
  const std::lock_guard<std::mutex> lock(mutex);
  return old_ones().count(address) != 0;
}

}  // namespace

void remember_aggregators(const GroupInfo& info) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t node = info.workers; node < info.nodes.size(); ++node)
    old_ones().insert(info.nodes[node].host);
}

void add_dedicated_aggregators(const std::vector<std::string>& addresses, const std::string& secret,
                               GroupInfo* info) {
  std::list<Connection> connections;
  for (const std::string& address : addresses) {
    const bool old = is_old(address);
    Node node;
    node.host = address;
    std::list<Connection> connection;
    try {
      introduce(connection.emplace_back(address, old ? kPatienceWithOld : kPatience), secret,
                &node);
    } catch (const Error& why) {
      if (!old) throw;
      log(LogLevel::warning, "left out: ", why.what());
      continue;
    }
    connections.splice(connections.end(), connection);
    info->nodes.push_back(node);
  }
  if (connections.empty() && !addresses.empty())
    log(LogLevel::warning, "no dedicated aggregator is left: the ranks aggregate themselves");
  uint64_t number = info->workers;
  for (Connection& connection : connections) {
    BytesWriter description;
    description.u64(number++);
    const std::string all = description.bytes() + info->pack();
    connection.send(proof(secret, "group", connection.nonces + all) + all);
  }
  for (Connection& connection : connections) connection.answer();
}

}  // namespace omnihvd
