#include "engine/rendezvous.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/awake_clock.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/time_limits.h"
#include "engine/agreement.h"
#include "protocol/wire.h"
#include "transport/file_descriptor.h"

namespace omnihvd {
namespace {

constexpr std::chrono::milliseconds kPatienceWithOld{5000};  // for aggregators that may have died
constexpr uint32_t kLongest = 1u << 26;
constexpr size_t kProofBytes = 32;
constexpr auto kAgain = std::chrono::milliseconds(100);  // between two attempts

// The aggregator closed the connection without a reason.
struct HungUp : Error {
  using Error::Error;
};
// This process could not even ask, which says nothing about the aggregator.
struct CannotAsk : Error {
  using Error::Error;
};

// A TCP connection with a time-out for connecting and for each message. Throws Error with the
// aggregator's name.
class Connection {
 public:
  Connection(const std::string& address, const std::string& secret, std::chrono::milliseconds wait)
      : patience(wait), name_("aggregator " + address), secret_(secret) {
    begin();
    const size_t colon = address.rfind(':');
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = getaddrinfo(address.substr(0, colon).c_str(),
                                   address.substr(colon + 1).c_str(), &hints, &found);
    if (status == EAI_SYSTEM || status == EAI_MEMORY)
      cannot_ask(status == EAI_MEMORY ? ENOMEM : errno);
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

  // Sends what `who` says, with a proof that it is ours and belongs to this conversation.
  void say(const std::string& who, const std::string& content) {
    send(proof(who, content) + content);
  }

  void send(const std::string& message) {
    begin();
    const uint32_t size = uint32_t(message.size());
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += message;
    for (size_t at = 0; at < bytes.size();) {
      wait(POLLOUT);
      const ssize_t n = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n < 0 && errno != EINTR && errno != EAGAIN) fail_by(errno);
      if (n > 0) at += size_t(n);
    }
  }

  // The aggregator's answer after "ok", verified.
  std::string answer(const std::string& who) {
    begin();
    uint32_t size;
    const std::string length = receive(sizeof size);
    std::memcpy(&size, length.data(), sizeof size);
    if (size < 2 || size > kLongest)
      fail("it is no aggregator of this release: install the same omnihvd on all hosts");
    const std::string message = receive(size);
    if (message.compare(0, 2, "ok")) fail(message.substr(2));
    if (size < 2 + kProofBytes)
      fail("it is no aggregator of this release: install the same omnihvd on all hosts");
    const std::string content = message.substr(2 + kProofBytes);
    if (!equal_in_constant_time(&message[2], proof(who, content).data(), kProofBytes))
      fail(
          "it has another secret, or its answer was changed on its way: OMNIHVD_SECRET must be the "
          "same everywhere");
    return content;
  }

  [[noreturn]] void fail(const std::string& why) const { throw Error(name_ + ": " + why); }

  std::string nonces;  // of this conversation
  std::chrono::milliseconds patience;

 private:
  std::string proof(const std::string& who, const std::string& content) const {
    return to_string(hmac_sha256(secret_, who + nonces + content));
  }

  [[noreturn]] void fail_by(int reason) const {
    if (reason == ECONNRESET || reason == EPIPE)
      throw HungUp(name_ + ": it closed the connection; its log says why");
    fail(std::strerror(reason));
  }

  void begin() { begun_ = clock_.now(); }

  [[noreturn]] void cannot_ask(int reason) const {
    throw CannotAsk(name_ + " cannot be asked: " +
                    (none_left(reason) ? kNoDescriptors : std::strerror(reason)));
  }

  int open(const addrinfo& at) {
    socket_ = ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0) {
      if (errno != EAFNOSUPPORT) cannot_ask(errno);
      return errno;
    }
    int reason = ::connect(socket_, at.ai_addr, at.ai_addrlen) ? errno : 0;
    if (reason == EINPROGRESS || reason == EINTR) {
      socklen_t size = sizeof reason;
      reason = comes(POLLOUT) ? 0 : ETIMEDOUT;
      if (!reason) ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &reason, &size);
    }
    if (reason) ::close(std::exchange(socket_, -1));
    return reason;
  }

  // Waits up to the time-out, counting only time in which this process was awake: if it was
  // stopped, the aggregator perhaps was, too.
  bool comes(short events) {
    const uint64_t limit = uint64_t(std::chrono::microseconds(patience).count());
    while (true) {
      const uint64_t waited = clock_.now() - begun_;
      const uint64_t left_ms = waited < limit ? (limit - waited) / 1000 : 0;
      pollfd ready{socket_, events, 0};
      const int count = ::poll(&ready, 1, int(std::min<uint64_t>(left_ms, 1000)));
      if (count > 0) return true;
      if (count < 0 && errno != EINTR) return false;
      if (left_ms == 0) return false;
    }
  }

  void wait(short events) {
    if (!comes(events)) fail("it does not answer");
  }

  std::string receive(size_t size) {
    std::string bytes(size, '\0');
    for (size_t at = 0; at < size;) {
      wait(POLLIN);
      const ssize_t n = ::recv(socket_, &bytes[at], size - at, 0);
      if (n == 0) fail_by(ECONNRESET);
      if (n < 0 && errno != EINTR && errno != EAGAIN) fail_by(errno);
      if (n > 0) at += size_t(n);
    }
    return bytes;
  }

  const std::string name_, secret_;
  AwakeClock clock_;
  uint64_t begun_ = 0;  // when the wait began
  int socket_ = -1;
};

struct Introduced {
  std::unique_ptr<Connection> connection;
  Node node;
};

Introduced introduce_once(const std::string& address, const std::string& secret,
                          std::chrono::milliseconds patience) {
  Introduced aggregator{std::make_unique<Connection>(address, secret, patience), {address, {}}};
  Connection& connection = *aggregator.connection;
  connection.nonces = random_bytes(32);
  connection.send("omnihvd-join " + std::to_string(kWireVersion) + "\n" + connection.nonces);
  connection.nonces += connection.answer("aggregator");
  connection.say("worker", "");
  const std::string addresses = connection.answer("addresses");
  BytesReader in(addresses);
  while (!in.at_end()) aggregator.node.addresses.push_back(in.text());
  if (aggregator.node.addresses.empty())
    connection.fail("it names no address that ranks can reach");
  connection.patience = kRendezvous.duration();  // it is alive
  return aggregator;
}

// If strangers crowd the aggregator it may have dropped us to make room: tries again.
Introduced introduce(const std::string& address, const std::string& secret,
                     std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    try {
      return introduce_once(address, secret, patience);
    } catch (const HungUp&) {
      if (std::chrono::steady_clock::now() > deadline) throw;
    }
    std::this_thread::sleep_for(kAgain);
  }
}

// Appends the aggregators at these host:port to the group's nodes, and sends each of them the
// description of the whole group, in parallel. Throws Error naming the aggregator. Takes seconds at
// most. If an aggregator has been in a group of this process and is unreachable now, leaves it out
// with a message: an elastic job continues without it, in the end with colocated aggregators alone.
void add_dedicated_aggregators(const std::vector<std::string>& addresses, const std::string& secret,
                               GroupInfo* info) {
  std::vector<std::future<Introduced>> calls;
  for (const std::string& address : addresses)
    calls.push_back(std::async(std::launch::async, introduce, address, secret,
                               aggregated(address) ? kPatienceWithOld : kRendezvous.duration()));
  std::vector<Introduced> present;
  for (size_t i = 0; i < calls.size(); ++i) {
    try {
      present.push_back(calls[i].get());
      info->nodes.push_back(present.back().node);
    } catch (const CannotAsk&) {
      throw;
    } catch (const Error& why) {
      if (!aggregated(addresses[i])) throw;
      log(LogLevel::warning, "left out: ", why.what());
    }
  }
  if (present.empty() && !addresses.empty())
    log(LogLevel::warning, "no dedicated aggregator is left: the ranks aggregate themselves");
  uint64_t number = info->workers;
  for (const Introduced& aggregator : present) {
    BytesWriter description;
    description.u64(number++);
    aggregator.connection->say("group", description.bytes() + info->pack());
  }
  for (const Introduced& aggregator : present) aggregator.connection->answer("ready");
}

}  // namespace

std::shared_ptr<const GroupInfo> agree_on_group(Exchange& exchange, const Node& self,
                                                const Settings& settings) {
  GroupAgreement agreement(self, settings, uint32_t(exchange.rank()));
  const auto all_say = [&](const std::function<std::string()>& content) {
    return contents_of(exchange.allgather(words_of(self, content)));
  };
  agreement.hear_introductions(all_say([&] { return agreement.introduction(); }));
  const auto said = all_say([&] {
    if (exchange.rank() != 0) return std::string();
    GroupInfo& info = agreement.make(random_bytes(8), random_bytes(32));
    add_dedicated_aggregators(settings.aggregators, settings.secret, &info);
    return agreement.decision();
  });
  const auto info = agreement.group_of(said[0]);
  remember_hosts(*info);
  return info;
}

}  // namespace omnihvd
