#include "simulator/csrc/network.h"

#include <algorithm>
#include <utility>

namespace omnihvd::simulation {

Network::Network(const Costs& costs, uint32_t hosts, uint32_t threads)
    : costs_(costs), idle_cores_(costs.cores ? costs.cores : hosts * threads), hosts_(hosts) {}

void Network::at(double time, Arrived then) {
  queue_.push({std::max(time, now_), events_++, std::move(then)});
}

void Network::compute(std::function<double()> work, Arrived then) {
  Job job{std::move(work), std::move(then)};
  if (idle_cores_ == 0) {
    waiting_.push_back(std::move(job));
    return;
  }
  --idle_cores_;
  begin(std::move(job));
}

void Network::begin(Job job) {
  const double seconds = job.work();
  at(now_ + seconds, [this, then = std::move(job.then)] {
    then();
    if (waiting_.empty()) {
      ++idle_cores_;
      return;
    }
    Job next = std::move(waiting_.front());
    waiting_.pop_front();
    begin(std::move(next));
  });
}

// A message occupies both links at once, apart from the delay: it starts when the later of them is
// free. The target's link is only reserved when the message's first byte arrives: a message that
// waits for its sender's link delays no other sender's. A slow core delays the last byte, and so the
// first by as much as the target's link is faster.
void Network::send(uint32_t from, uint32_t to, double bytes, Arrived arrived) {
  const double seconds = bytes / costs_.rate;
  Host& source = hosts_[from];
  source.sent += bytes;
  const double leaves = std::max(now_, source.out_free);
  source.out_free = leaves + seconds;
  Arrived comes = [this, to, seconds, last = std::move(arrived)]() mutable {
    Host& target = hosts_[to];
    target.in_free = std::max(now_, target.in_free) + seconds;
    at(target.in_free, std::move(last));
  };
  if (costs_.core_rate == 0) return at(leaves + costs_.delay, std::move(comes));
  at(leaves, [this, bytes, then = std::move(comes)]() mutable {
    const double passes = std::max(now_, core_free_);
    core_free_ = passes + bytes / costs_.core_rate;
    at(std::max(passes, core_free_ - bytes / costs_.rate) + costs_.delay, std::move(then));
  });
}

uint64_t Network::run(const std::function<void()>& tick) {
  constexpr uint64_t kTick = 1 << 14;  // events
  for (uint64_t done = 1; !queue_.empty(); ++done) {
    if (done % kTick == 0) tick();
    // priority_queue returns its first element as const; it is removed at once.
    Event event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    now_ = event.time;
    event.then();
  }
  return events_;
}

}  // namespace omnihvd::simulation
