#include "simulator/csrc/goal.h"

#include <cmath>

#include "base/error.h"

namespace omnihvd::simulation {
namespace {

constexpr uint32_t kMostProcessors = 255;  // numbers of processors have a byte in LogGOPSim

std::string units(double seconds) { return std::to_string(std::llround(seconds * 1e12)); }

}  // namespace

Goal::Goal(uint32_t hosts, uint32_t streams)
    : streams_(streams), hosts_(hosts), labels_(hosts), clocks_(hosts), threads_(hosts * streams) {
  // Senders need a processor beside the threads' own.
  if (streams >= kMostProcessors) throw Error("a schedule in GOAL has at most 254 threads a host");
}

std::string Goal::processor_of(uint32_t sender) const {
  return " cpu " + std::to_string(streams_ + sender % (kMostProcessors - streams_));
}

uint64_t Goal::add(uint32_t thread, const std::string& what) {
  const uint64_t label = ++labels_[thread / streams_];
  of(thread) += "l" + std::to_string(label) + ": " + what + "\n";
  return label;
}

void Goal::require(uint32_t thread, uint64_t label, uint64_t required) {
  of(thread) += "l" + std::to_string(label) + " requires l" + std::to_string(required) + "\n";
}

void Goal::waits(uint32_t thread, double seconds) {
  if (seconds <= 0) return;
  uint64_t& clock = clocks_[thread / streams_];
  if (clock == 0)
    clock = add(thread, "calc " + units(seconds) + " cpu " + std::to_string(kMostProcessors));
  threads_[thread].required.push_back(clock);
}

void Goal::takes(uint32_t thread, uint32_t from, uint64_t bytes, uint64_t message) {
  const uint64_t received =
      add(thread, "recv " + std::to_string(bytes) + "b from " + std::to_string(from) + " tag " +
                      std::to_string(uint32_t(message)) + processor_of(from));
  // LogGOPSim reports a message with its first byte, and keeps its processor busy until the last.
  const uint64_t there = add(thread, "calc 0" + processor_of(from));
  require(thread, there, received);
  threads_[thread].required.push_back(there);
}

uint64_t Goal::sends(uint32_t thread, uint32_t to, uint64_t bytes, double after) {
  calculate(thread, after);
  const uint64_t message = ++messages_;
  const uint64_t sent =
      add(thread, "send " + std::to_string(bytes) + "b to " + std::to_string(to) + " tag " +
                      std::to_string(uint32_t(message)) + processor_of(thread / streams_));
  for (const uint64_t required : threads_[thread].required) require(thread, sent, required);
  return message;
}

void Goal::ends(uint32_t thread, double seconds) {
  calculate(thread, seconds);
  threads_[thread].calculated = 0;
}

void Goal::calculate(uint32_t thread, double until) {
  Thread& of = threads_[thread];
  const uint64_t label = add(
      thread, "calc " + units(until - of.calculated) + " cpu " + std::to_string(thread % streams_));
  for (const uint64_t required : of.required) require(thread, label, required);
  of.required = {label};
  of.calculated = until;
}

std::string Goal::text() const {
  std::string all = "num_ranks " + std::to_string(hosts_.size()) + "\n";
  for (size_t host = 0; host < hosts_.size(); ++host)
    all += "\nrank " + std::to_string(host) + " {\n" + hosts_[host] + "}\n";
  return all;
}

}  // namespace omnihvd::simulation
