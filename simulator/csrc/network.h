// Hosts with links and processors, as a discrete-event simulation: what a message costs, and when
// it arrives. Knows nothing of what messages hold.
//
// A host has a link of its own, which carries `rate` each way, first come, first served; all links
// together may be bounded by the core of the network. What a host does with its messages takes
// processor time, of a core of its own, or of `cores` that all hosts share, as in the lab.
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
  double message_s = 0;    // processor seconds of a message, to send it, and to receive it
  double byte_s = 0;       // and of each of its bytes
  double inspected_s = 0;  // of a byte of the tensor that is looked at
  double begin_s = 0;      // before anything is looked at
  uint32_t cores = 0;      // that all hosts share; 0: each has one
};

class Network {
 public:
  using Arrived = std::function<void()>;

  Network(const Costs& costs, uint32_t hosts, uint32_t threads);
  double now() const { return now_; }
  // Calls `then` at that time; in the order of calls, where times are the same.
  void at(double time, Arrived then);
  // Work of a host, which gives it one at a time: it begins when a core is free: `work` says how
  // many seconds it takes. `then` is called at its end.
  void compute(std::function<double()> work, Arrived then);
  // From one host to another; `arrived` when the last byte has.
  void send(uint32_t from, uint32_t to, double bytes, Arrived arrived);
  // Until nothing is left to do. Returns how many events there were. `tick` is called now and then;
  // what it throws ends the run.
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
