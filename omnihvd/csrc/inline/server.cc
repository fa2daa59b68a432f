#include "inline/server.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "inline/addresses.h"

namespace omnihvd {
namespace {

constexpr uint64_t kLookEvery = 1'000'000;  // microseconds

sockaddr_in address_of(const InlineServer::Options& options) {
  if (options.jobs < 1 || options.jobs > 1024 || options.slots < 1)
    throw Error("an aggregator takes 1 to 1024 jobs, of at least one slot");
  return socket_address(ipv4(options.host, options.port));
}

uint64_t group_of(const InlineServer::Options& options, uint16_t port) {
  if (options.group.empty()) return 0;
  const uint64_t group = ipv4(options.group, port);
  if (!IN_MULTICAST(uint32_t(group >> 16)))
    throw Error(options.group + " is no multicast address: those are 224.0.0.0 to 239.255.255.255");
  return group;
}

}  // namespace

InlineServer::InlineServer(const Options& options, InlinePlane* plane, InlineInterface* interface)
    : socket_(address_of(options)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"),
      group_(group_of(options, socket_.port())),
      sums_(plane ? 0 : options.jobs, options.slots),
      plane_(plane ? *plane : sums_),
      interface_(interface),
      jobs_(options.secret, plane_, options.jobs, options.slots, uint32_t(group_ >> 16),
            group_ ? uint16_t(group_) : uint16_t{0}),
      contributions_(options.jobs) {
  if (group_ == 0) return;
  const in_addr out = socket_address(ipv4(options.host, 0)).sin_addr;
  if (setsockopt(socket_.fd(), IPPROTO_IP, IP_MULTICAST_IF, &out, sizeof out) != 0)
    throw Error("cannot send to a group from " + options.host + ": " + std::strerror(errno));
}

std::vector<pollfd> InlineServer::waits() const {
  std::vector<pollfd> waits = {{stop_, POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
  if (interface_)
    for (const int fd : interface_->descriptors()) waits.push_back({fd, POLLIN, 0});
  return waits;
}

void InlineServer::run() {
  std::vector<pollfd> waits = this->waits();
  for (;;) {
    bool any = socket_.receive([this](const sockaddr_in& from, const uint8_t* data, size_t size) {
      take(from, data, size);
    });
    socket_.flush();
    if (interface_ && interface_->exchange(sums_)) any = true;
    const uint64_t now = steady_us();
    if (now - looked_at_ >= kLookEvery) look_at_jobs(now);
    poll(waits.data(), waits.size(), any ? 0 : int(kLookEvery / 1000));
    if (waits[0].revents) return;
    if (waits[1].revents & POLLERR) {
      socket_.expect_refusals();
      socket_.refusals();  // workers who have ended
    }
  }
}

void InlineServer::stop() {
  const uint64_t one = 1;
  if (write(stop_, &one, sizeof one) < 0) return;  // it is stopped already
}

std::array<uint64_t, kInlineCounts> InlineServer::counts() const { return sums_.counts(); }

void InlineServer::look_at_jobs(uint64_t now) {
  looked_at_ = now;
  for (size_t i = 0; i < contributions_.size(); ++i) {
    const uint64_t count = plane_.contributions(i);
    if (count != contributions_[i]) jobs_.heard(i, now);
    contributions_[i] = count;
  }
}

void InlineServer::take(const sockaddr_in& from, const uint8_t* data, size_t size) {
  if (SlotAggregator::is_contribution(data, size)) {
    if (&plane_ == &sums_) send(sums_.take(data, size), from);
    return;  // what a data plane does not take, nobody does
  }
  const auto answer = jobs_.take(steady_us(), number_of(from), data, size);
  if (!answer) return;
  if (answer->changed) {
    const InlineJob& job = jobs_.jobs()[*answer->changed];
    plane_.set_job(*answer->changed, job.key, job.workers, job.numbers);
    if (job.workers)
      log(LogLevel::info, "a job of ", job.workers, " workers begins");
    else
      log(LogLevel::info, "a job has ended");
  }
  socket_.add(from, answer->bytes, sizeof answer->bytes, {nullptr, 0});
  socket_.flush();
}

void InlineServer::send(const SlotAggregator::Answer& answer, const sockaddr_in& from) {
  const auto* const head = reinterpret_cast<const uint8_t*>(&answer.head);
  const auto to = [&](const sockaddr_in& at) {
    socket_.add(at, head, sizeof answer.head, answer.block);
  };
  if (answer.to == SlotAggregator::To::sender) return to(from);
  if (answer.to == SlotAggregator::To::nobody) return;
  if (group_) return to(socket_address(group_));
  for (const uint64_t address : jobs_.jobs()[answer.job].addresses)
    if (address) to(socket_address(address));
}

}  // namespace omnihvd
