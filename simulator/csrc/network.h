// Hosts with links and processors, as a discrete-event simulation: how much a message costs, and
// when it arrives. It knows nothing of the content of messages.
//
// A host has a link of its own, which carries `rate` each way, first come, first served; the core
// of the network may bound all links together. Handling messages takes processor time: on a core of
// the host's own, or on one of `cores` that all hosts share, as in the lab.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <vector>

namespace omnihvd::simulation {

struct Costs {
  double rate = 1.25e9;    // payload bytes a second of a link, each way
  double core_rate = 0;    // of all that travels; 0: without a bound
  double delay = 20e-6;    // seconds, from host to host
  double message_s = 0;    // processor seconds to send a message, and to receive it
  double byte_s = 0;       // and for each of its bytes
  double inspected_s = 0;  // for each byte of the tensor that is inspected
  double begin_s = 0;      // before the inspection begins
  uint32_t cores = 0;      // shared by all hosts; 0: each host has one
};

class Network {
 public:
  using Arrived = std::function<void()>;

  Network(const Costs& costs, uint32_t hosts, uint32_t threads);
  double now() const { return now_; }
  // Calls `then` at `time`. Calls for the same time run in the order in which they were made.
  void at(double time, Arrived then);
  // Queues work of a host. A host runs one piece at a time, once a core is free. `work` returns how
  // many seconds it takes; `then` is called at its end.
  void compute(std::function<double()> work, Arrived then);
  // Sends from one host to another; calls `arrived` when the last byte has arrived.
  void send(uint32_t from, uint32_t to, double bytes, Arrived arrived);
  // Runs until nothing is left to do. Returns the number of events. `tick` is called now and then;
  // if it throws, the run ends.
  uint64_t run(const std::function<void()>& tick);

  double sent_bytes(uint32_t host) const { return hosts_[host].sent; }

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
  void begin(Job job);

  const Costs costs_;
  double now_ = 0, core_free_ = 0;
  uint64_t events_ = 0;
  uint32_t idle_cores_;
  std::vector<Host> hosts_;
  std::deque<Job> waiting_;  // for a core
  std::priority_queue<Event> queue_;
};

}  // namespace omnihvd::simulation
