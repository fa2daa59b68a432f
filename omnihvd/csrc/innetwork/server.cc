#include "innetwork/server.h"

#include <poll.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "innetwork/addresses.h"

namespace omnihvd {
namespace {

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
            group_ ? uint16_t(group_) : uint16_t{0}) {
  if (group_ == 0) return;
  const in_addr out = socket_address(ipv4(options.host, 0)).sin_addr;
  if (setsockopt(socket_.fd(), IPPROTO_IP, IP_MULTICAST_IF, &out, sizeof out) != 0)
    throw Error("cannot send to a group from " + options.host + ": " + std::strerror(errno));
}

void InlineServer::run() {
  std::vector<pollfd> waits = {{stop_, POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
  if (interface_)
    for (const int fd : interface_->descriptors()) waits.push_back({fd, POLLIN, 0});
  for (;;) {
    bool any = socket_.receive([this](const sockaddr_in& from, const uint8_t* data, size_t size) {
      take(from, data, size);
    });
    socket_.flush();
    if (interface_ && interface_->exchange(sums_)) any = true;
    poll(waits.data(), waits.size(), any ? 0 : -1);
    if (waits[0].revents) return;
    if (waits[1].revents & POLLERR) socket_.expect_refusals();
    take_refusals();
  }
}

void InlineServer::ask() {
  for (const InlineJobs::Question& question : jobs_.questions(steady_us()))
    socket_.add(socket_address(question.to), question.bytes, sizeof question.bytes, {nullptr, 0});
  socket_.flush();
}

void InlineServer::take_refusals() {
  for (const sockaddr_in& ended : socket_.refusals())
    if (const auto job = jobs_.take_refusal(steady_us(), number_of(ended))) tell_of(*job);
}

void InlineServer::tell_of(size_t at) {
  const InlineJob& job = jobs_.jobs()[at];
  plane_.set_job(at, job.key, job.workers, job.numbers);
  if (job.workers)
    log(LogLevel::info, "a job of ", job.workers, " workers begins");
  else
    log(LogLevel::info, "a job has ended");
}

// The host of one worker of each job.
std::string InlineServer::who_lives() const {
  std::string hosts;
  for (const InlineJob& job : jobs_.jobs())
    for (const uint64_t address : job.addresses)
      if (address) {
        char host[INET_ADDRSTRLEN];
        const in_addr at = socket_address(address).sin_addr;
        hosts +=
            (hosts.empty() ? "" : ", ") + std::string(inet_ntop(AF_INET, &at, host, sizeof host));
        break;
      }
  return hosts;
}

void InlineServer::take(const sockaddr_in& from, const uint8_t* data, size_t size) {
  const bool contributes = SlotAggregator::is_contribution(data, size);
  if (contributes && &plane_ == &sums_) return send(sums_.take(data, size), from);
  // Nobody takes what a data plane does not.
  const auto answer = contributes ? jobs_.take_bypass(number_of(from), data, size)
                                  : jobs_.take(steady_us(), number_of(from), data, size);
  if (!answer) return;
  if (answer->changed) tell_of(*answer->changed);
  if (answer->refused == InlineRefusal::full)
    log(LogLevel::warning, "refuses a job: all ", jobs_.jobs().size(),
        " places (--jobs) have jobs that have not ended, with workers at ", who_lives());
  if (answer->asks) ask();
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
