// A simulated sum as a schedule in GOAL (Hoefler et al., "Group Operation Assembly Language", ICPP
// 2009), which LogGOPSim and others simulate by a model of their own: what each thread calculates,
// and for how long, after which messages, and which it sends when.
//
// Times are picoseconds. A message is received on a processor of its own, one for each sender, so
// that neither what a thread calculates nor what its host sends waits until its last byte is there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace omnihvd::simulation {

class Goal {
 public:
  Goal(uint32_t hosts, uint32_t streams);

  // What a thread does from now on it does not before this time, the same for all of its host.
  void waits(uint32_t thread, double seconds);
  // A piece of work of a thread: of the messages that it takes, the sender and what send() said...
  void takes(uint32_t thread, uint32_t from, uint64_t bytes, uint64_t message);
  // ...of those that it sends, how long after its beginning...
  uint64_t sends(uint32_t thread, uint32_t to, uint64_t bytes, double after);
  // ...and how long it takes.
  void ends(uint32_t thread, double seconds);

  std::string text() const;

 private:
  struct Thread {
    double calculated = 0;           // seconds of the piece of work, so far
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
  std::vector<uint64_t> clocks_;    // [host]: the label of its waiting; 0: none
  std::vector<Thread> threads_;
  uint64_t messages_ = 0;
};

}  // namespace omnihvd::simulation
