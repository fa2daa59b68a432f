// A network with fault injection: it loses, duplicates, reorders and delays datagrams and is
// partitioned; its machines pause or have clocks that jump. The protocol's own DatagramSender and
// DatagramReceiver carry messages over it. One thread runs all of it, and the seed determines
// everything that happens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "base/error.h"
#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"
#include "simulator/csrc/prng.h"

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

  BadNetwork(uint32_t hosts, const Faults& faults, Prng& prng, Came came, Sent sent)
      : faults_(faults),
        prng_(prng),
        came_(std::move(came)),
        sent_(std::move(sent)),
        nobody_(hosts),
        machines_(faults.machines),
        ahead_(machines_),
        paused_until_(machines_),
        stopped_(hosts + 1) {
    for (const Faults::OfMachine& jump : faults_.jumps)
      at(jump.at_us, nobody_, [this, jump] {
        ahead_[jump.machine] += jump.by_us;
        ++counts_.jumps;
        for (auto& [ends, one] : ways_)
          if (machine_of(ends.first) == jump.machine && !stopped_[ends.first]) pump(*one);
      });
    for (const Faults::OfMachine& pause : faults_.pauses)
      at(pause.at_us, nobody_, [this, pause] {
        paused_until_[pause.machine] = now_ + pause.by_us;
        ++counts_.pauses;
      });
  }

  uint64_t now() const { return now_; }  // microseconds
  uint32_t nobody() const { return nobody_; }
  bool stopped(uint32_t host) const { return stopped_[host]; }
  uint64_t clock(uint32_t host) const { return now_ + ahead_[machine_of(host)]; }
  const Counts& counts() const { return counts_; }

  // Calls `then` at `time`, unless the host has stopped by then.
  void at(uint64_t time, uint32_t host, std::function<void()> then) {
    queue_.push({std::max(time, now_), events_++, host, std::move(then)});
  }

  void send(uint32_t from, uint32_t to, uint64_t name, Bytes bytes) {
    Way& one = way(from, to);
    one.sender.send(name, uint32_t(bytes.size()));
    one.messages.emplace(name, std::move(bytes));
    pump(one);
  }

  void stop(uint32_t host) {
    stopped_[host] = true;
    ++counts_.crashes;
  }

  // false: nothing is left that could happen.
  bool step() {
    if (queue_.empty()) return false;
    Event event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    now_ = event.time;
    if (stopped_[event.host]) return true;
    const uint64_t goes_on = event.host == nobody_ ? 0 : paused_until_[machine_of(event.host)];
    if (goes_on > now_) {
      event.time = goes_on;
      queue_.push(std::move(event));
    } else {
      event.then();
    }
    return true;
  }

 private:
  static constexpr uint32_t kPayload = 1000, kWindow = 256, kLargest = 1 << 20;
  static constexpr uint64_t kTrip = 50;  // microseconds

  struct Event {
    uint64_t time, number;
    uint32_t host;
    std::function<void()> then;
    bool operator<(const Event& o) const {
      return time != o.time ? time > o.time : number > o.number;
    }
  };
  struct Way {  // from one host to another
    Way(uint32_t from_host, uint32_t to_host, uint32_t first)
        : from(from_host),
          to(to_host),
          sender(first, kPayload, kWindow),
          receiver(first, kPayload, kWindow, kLargest, true) {}
    const uint32_t from, to;
    DatagramSender sender;
    DatagramReceiver receiver;
    std::map<uint64_t, Bytes> messages;  // under way
    uint64_t wakes_at = 0;               // of now(); 0: at no time
    bool is_to_acknowledge = false;
  };

  uint32_t machine_of(uint32_t host) const { return host % machines_; }

  Way& way(uint32_t from, uint32_t to) {
    std::unique_ptr<Way>& found = ways_[{from, to}];
    // Sequence numbers begin anywhere, so that some pass 2^32.
    if (!found) found = std::make_unique<Way>(from, to, uint32_t(0) - uint32_t(prng_.below(300)));
    return *found;
  }

  void pump(Way& one) {
    DatagramSender::Piece piece;
    while (one.sender.next(clock(one.from), &piece)) {
      const Bytes& all = one.messages.at(piece.message);
      const auto begin = all.begin() + piece.header.offset;
      carry(one.from, one.to,
            [this, &one, header = piece.header, bytes = Bytes(begin, begin + piece.bytes)] {
              come(one, header, bytes);
            });
      if (prng_.chance(faults_.partly)) {
        ++counts_.partly;
        return at(now_ + 1 + prng_.below(kTrip), one.from, [this, &one] { pump(one); });
      }
    }
    const auto wake = one.sender.wake_at();
    if (!wake) return;
    const uint64_t time = *wake > clock(one.from) ? *wake - ahead_[machine_of(one.from)] : now_ + 1;
    if (one.wakes_at > now_ && one.wakes_at <= time) return;
    one.wakes_at = time;
    at(time, one.from, [this, &one, time] {
      if (one.wakes_at != time) return;
      one.wakes_at = 0;
      pump(one);
    });
  }

  // Loss, duplication and delay happen in transit.
  void carry(uint32_t from, uint32_t to, const std::function<void()>& arrived) {
    ++counts_.datagrams;
    for (const Faults::Cut& cut : faults_.cuts)
      if (now_ >= cut.from_us && now_ < cut.to_us &&
          cut.half[machine_of(from)] != cut.half[machine_of(to)]) {
        ++counts_.cut;
        return;
      }
    if (prng_.chance(faults_.lost)) {
      ++counts_.lost;
      return;
    }
    const bool twice = prng_.chance(faults_.twice);
    counts_.twice += twice;
    for (int copy = 0; copy <= int(twice); ++copy) {
      uint64_t delay = kTrip + prng_.below(3);
      if (prng_.chance(faults_.late)) {
        ++counts_.late;
        delay += prng_.below(faults_.late_us + 1);
      }
      at(now_ + delay, to, arrived);
    }
  }

  void come(Way& one, const Datagram& header, const Bytes& bytes) {
    if (one.receiver.on_datagram(header, bytes.data(), bytes.size()) ==
        DatagramReceiver::Taken::refused)
      throw Error("a datagram was refused that was sent");
    if (one.receiver.held_bytes() > size_t(kWindow) * kPayload + 2 * kLargest)
      throw Error("a receiver holds more than it may");
    if (!std::exchange(one.is_to_acknowledge, true))
      at(now_ + prng_.below(2 * kTrip), one.to, [this, &one] { acknowledge(one); });
    Bytes message;
    while (one.receiver.next_message(&message)) came_(one.to, one.from, message);
  }

  void acknowledge(Way& one) {
    one.is_to_acknowledge = false;
    if (!one.receiver.owes()) return;
    carry(one.to, one.from, [this, &one, said = one.receiver.acknowledgement()] {
      std::vector<uint64_t> done;
      if (!one.sender.on_acknowledgement(clock(one.from), said, &done))
        throw Error("an acknowledgement was refused that was sent");
      for (const uint64_t name : done) {
        one.messages.erase(name);
        sent_(one.from, name);
      }
      pump(one);
    });
  }

  const Faults faults_;
  Prng& prng_;
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
