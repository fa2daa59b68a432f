// A network with fault injection: it loses, duplicates, reorders and delays datagrams and is
// partitioned; its machines pause or have clocks that jump. The protocol's own DatagramSender and
// DatagramReceiver carry messages over it. One thread runs all of it, and the seed determines
// everything that happens.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

struct Faults {
  double lost = 0, twice = 0;  // shares of datagrams and acknowledgements
  double late = 0;             // share delayed by up to late_us, and so overtaken
  uint64_t late_us = 0;
  double partly = 0;  // share of sends after which the socket blocks for a while
  // Hosts are processes, dealt in turn to this many machines.
  uint32_t machines = 1;
  struct Cut {  // a partition: all that passes between two halves is lost, from .. to
    uint64_t from_us, to_us;
    std::vector<bool> half;  // [machine]
  };
  std::vector<Cut> cuts;
  struct OfMachine {
    uint32_t machine;
    uint64_t at_us, by_us;  // how far a clock jumps, or how long a pause is
  };
  std::vector<OfMachine> jumps, pauses;
};

class BadNetwork {
 public:
  struct Counts {
    uint64_t datagrams = 0, lost = 0, twice = 0, late = 0, cut = 0, crashes = 0, jumps = 0;
    uint64_t pauses = 0, partly = 0;
  };
  using Bytes = std::vector<uint8_t>;
  // A message has arrived at a host.
  using Came = std::function<void(uint32_t to, uint32_t from, const Bytes& message)>;
  // The sender knows that all of a message has arrived.
  using Sent = std::function<void(uint32_t from, uint64_t name)>;

  BadNetwork(uint32_t hosts, const Faults& faults, Dice& dice, Came came, Sent sent);
  ~BadNetwork();

  uint64_t now() const { return now_; }  // microseconds
  // Calls `then` at `time`, unless the host has stopped by then.
  void at(uint64_t time, uint32_t host, std::function<void()> then);
  void send(uint32_t from, uint32_t to, uint64_t name, Bytes bytes);
  bool step();  // false: nothing is left that could happen
  void stop(uint32_t host);
  uint32_t nobody() const { return nobody_; }
  bool stopped(uint32_t host) const { return stopped_[host]; }
  uint64_t clock(uint32_t host) const { return now_ + ahead_[machine_of(host)]; }
  const Counts& counts() const { return counts_; }

 private:
  struct Event {
    uint64_t time, number;
    uint32_t host;
    std::function<void()> then;
    bool operator<(const Event& o) const {
      return time != o.time ? time > o.time : number > o.number;
    }
  };
  struct Way;
  Way& way(uint32_t from, uint32_t to);
  uint32_t machine_of(uint32_t host) const { return host % machines_; }
  void pump(Way& way);
  void carry(uint32_t from, uint32_t to, const std::function<void()>& arrived);
  void come(Way& way, const Datagram& header, const Bytes& bytes);
  void acknowledge(Way& way);

  const Faults faults_;
  Dice& dice_;
  const Came came_;
  const Sent sent_;
  uint64_t now_ = 0, events_ = 0;
  const uint32_t nobody_, machines_;    // nobody: a host that never stops
  std::vector<uint64_t> ahead_;         // [machine]: of its clock
  std::vector<uint64_t> paused_until_;  // [machine]
  std::vector<bool> stopped_;           // [host]
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Way>> ways_;
  std::priority_queue<Event> queue_;
  Counts counts_;
};

}  // namespace omnihvd::simulation
