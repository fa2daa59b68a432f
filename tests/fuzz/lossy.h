// A network that loses, repeats and reorders as the input says. All times are in us.
#pragma once

#include <deque>
#include <utility>

#include "input.h"

namespace omnihvd::fuzz {

struct Times {
  uint64_t step;        // while datagrams are under way
  uint64_t wait;        // while none are: the senders' least time-out
  uint64_t longest;     // that a sender waits before it sends again
  uint64_t most_steps;  // in which a datagram arrives or is lost
};

template <class Datagram>
class LossyNetwork {
 public:
  explicit LossyNetwork(const Times& times) : times_(times) {}

  void send(Datagram datagram) { under_way_.push_back(std::move(datagram)); }

  void pass(uint64_t* now) const { *now += under_way_.empty() ? times_.wait : times_.step; }

  // Whether a datagram arrives.
  bool deliver(Input& in, Datagram* arrives) {
    if (under_way_.empty()) {
      MUST(++waits_ <= times_.longest / times_.wait + 1);  // one after another
      return false;
    }
    MUST(++steps_ < times_.most_steps);
    waits_ = 0;
    const uint8_t fate = in.number<uint8_t>();  // 0 without input: the next arrives
    const size_t which = (fate >> 2) % under_way_.size();
    *arrives = under_way_[which];
    if (fate % 4 != 1) under_way_.erase(under_way_.begin() + long(which));  // 1: it comes twice
    return fate % 4 != 2;                                                   // 2: it is lost
  }

 private:
  const Times times_;
  std::deque<Datagram> under_way_;
  uint64_t waits_ = 0, steps_ = 0;
};

}  // namespace omnihvd::fuzz
