// A simulated sum as a schedule in GOAL (Hoefler et al., "Group Operation Assembly Language", ICPP
// 2009). LogGOPSim and others simulate it with a model of their own. The schedule says how long
// each thread calculates, after which messages, and when it sends which messages.
//
// Times are picoseconds. Each sender has a processor of its own at the receiver, so that the wait
// for a message's last byte delays neither a thread's calculations nor its host's sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace omnihvd::simulation {

class Goal {
 public:
  Goal(uint32_t hosts, uint32_t streams);

  // From now on the thread does nothing before this time, which is the same for all threads of its
  // host.
  void waits(uint32_t thread, double seconds);
  // A piece of work of a thread. For each message that it takes: the sender, and what send()
  // returned...
  void takes(uint32_t thread, uint32_t from, uint64_t bytes, uint64_t message);
  // ...for each message that it sends: how long after the beginning...
  uint64_t sends(uint32_t thread, uint32_t to, uint64_t bytes, double after);
  // ...and how long the piece takes.
  void ends(uint32_t thread, double seconds);

  std::string text() const;

 private:
  struct Thread {
    double calculated = 0;           // seconds so far, in this piece of work
    std::vector<uint64_t> required;  // labels that the next calculation waits for
  };
  std::string& of(uint32_t thread) { return hosts_[thread / streams_]; }
  uint64_t add(uint32_t thread, const std::string& what);
  void require(uint32_t thread, uint64_t label, uint64_t required);
  void calculate(uint32_t thread, double until);
  std::string processor_of(uint32_t sender) const;

  const uint32_t streams_;
  std::vector<std::string> hosts_;  // [host]: its lines
  std::vector<uint64_t> labels_;    // [host]
  std::vector<uint64_t> clocks_;    // [host]: the label of its wait; 0: none
  std::vector<Thread> threads_;
  uint64_t messages_ = 0;
};

}  // namespace omnihvd::simulation
