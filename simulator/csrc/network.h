// Hosts with links and processors, as a discrete-event simulation: how much a message costs, and
// when it arrives. It knows nothing of the content of messages.
//
// A host has a link of its own, which carries `rate` each way, first come, first served; the core
// of the network may bound all links together. Handling messages takes processor time: on a core of
// the host's own, or on one of `cores` that all hosts share, as in the lab.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace omnihvd::simulation {

struct Costs {
  double rate;         // payload bytes a second of a link, each way
  double core_rate;    // of all that travels; 0: without a bound
  double delay;        // seconds, from host to host
  double message_s;    // processor seconds to send a message, and to receive it
  double byte_s;       // and for each of its bytes
  double inspected_s;  // for each byte of the tensor that is inspected
  double begin_s;      // before the inspection begins
  uint32_t cores;      // shared by all hosts; 0: each host has one
};

class Network {
 public:
  using Arrived = std::function<void()>;

  Network(const Costs& costs, uint32_t hosts, uint32_t threads)
      : costs_(costs), idle_cores_(costs.cores ? costs.cores : hosts * threads), hosts_(hosts) {}

  double now() const { return now_; }
  double sent_bytes(uint32_t host) const { return hosts_[host].sent; }

  // Calls `then` at `time`. Calls for the same time run in the order in which they were made.
  void at(double time, Arrived then) {
    queue_.push({std::max(time, now_), events_++, std::move(then)});
  }

  // Queues work of a host. A host runs one piece at a time, once a core is free. `work` returns how
  // many seconds it takes; `then` is called at its end.
  void compute(std::function<double()> work, Arrived then) {
    Job job{std::move(work), std::move(then)};
    if (idle_cores_ == 0) {
      waiting_.push_back(std::move(job));
      return;
    }
    --idle_cores_;
    begin(std::move(job));
  }

  // Sends from one host to another; calls `arrived` when the last byte has arrived. A message
  // occupies both links at once, apart from the delay: it starts when the later of them is free.
  // The target's link is only reserved when the message's first byte arrives: a message that waits
  // for its sender's link delays no other sender's. A slow core delays the last byte, and so the
  // first by as much as the target's link is faster.
  void send(uint32_t from, uint32_t to, double bytes, Arrived arrived) {
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

  // Runs until nothing is left to do. Returns the number of events. `tick` is called now and then;
  // if it throws, the run ends.
  uint64_t run(const std::function<void()>& tick) {
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

 private:
  struct Event {
    double time;
    uint64_t number;
    Arrived then;
    bool operator<(const Event& o) const {
      return time != o.time ? time > o.time : number > o.number;
    }
  };
  struct Host {
    double out_free = 0, in_free = 0, sent = 0;
  };
  struct Job {
    std::function<double()> work;
    Arrived then;
  };

  void begin(Job job) {
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

  const Costs costs_;
  double now_ = 0, core_free_ = 0;
  uint64_t events_ = 0;
  uint32_t idle_cores_;
  std::vector<Host> hosts_;
  std::deque<Job> waiting_;  // for a core
  std::priority_queue<Event> queue_;
};

}  // namespace omnihvd::simulation
