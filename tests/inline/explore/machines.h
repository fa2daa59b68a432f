// The states of one slot of the aggregator and of one worker, each with a number, and what each
// datagram does to it. The machines are the product's own: each pair of a state and a datagram runs
// once, and the answer is kept.
//
// No state depends on time. A time-out may come at any moment, so that due times, round trips and
// counts say nothing about what may follow; they are cleared.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "innetwork/slot_aggregator.h"
#include "innetwork/slot_worker.h"
#include "job.h"

namespace explore {

using omnihvd::SlotAggregator;
using omnihvd::SlotWorker;

constexpr uint64_t kKey = 77, kNow = 1'000'000;
constexpr uint32_t kNone = ~0u;

// Contributions by number. A worker sends few different ones, however often it repeats them.
struct Contribution {
  uint16_t worker, slot;
  std::string bytes;
};

class Contributions {
 public:
  uint32_t number_of(const uint8_t* data, size_t size) {
    std::string bytes(reinterpret_cast<const char*>(data), size);
    const auto [at, is_new] = numbers_.emplace(bytes, uint32_t(all_.size()));
    if (is_new) {
      inline_head head;
      std::memcpy(&head, data, sizeof head);
      all_.push_back({head.worker, head.slot, std::move(bytes)});
    }
    return at->second;
  }
  const Contribution& operator[](uint32_t number) const { return all_[number]; }
  size_t size() const { return all_.size(); }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<Contribution> all_;
};

template <class T>
void append(std::string* key, const T& value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// A slot of the aggregator.
class SlotStates {
 public:
  struct Step {
    uint32_t to = kNone;        // the next state; kNone: not tried yet
    uint32_t answered = kNone;  // index of the round: the sender gets its result
  };
  SlotStates(const Job& job, uint16_t slot, const Contributions& sent)
      : job_(job),
        slot_(slot),
        sent_(sent),
        expected_(expected_of(job, slot)),
        machine_(1, slot + 1) {
    machine_.set_job(0, kKey, job.workers, INLINE_INT32);
    Slot& state = machine_.slots_[slot];
    state.state.round = job.first_round;
    for (uint32_t w = 0; w < INLINE_WORKERS; ++w) state.state.heard[w] = job.first_round;
    results_.resize(expected_.size());
    keep(state);
  }

  Step take(uint32_t state, uint32_t contribution) {
    std::vector<Step>& steps = steps_[state];
    if (steps.size() <= contribution) steps.resize(sent_.size());
    if (steps[contribution].to == kNone) {
      const Step step = run(state, sent_[contribution].bytes);
      steps_[state][contribution] = step;
    }
    return steps_[state][contribution];
  }
  // How many rounds are complete: their results have been sent to all.
  uint32_t complete(uint32_t state) const { return states_[state].state.round - job_.first_round; }
  // Is the result of this round, or will it be, there for those who ask?
  bool holds(uint32_t state, uint32_t index) const {
    const Slot& slot = states_[state];
    if (index >= complete(state)) return true;
    const Expected& right = expected_[index];
    const uint32_t version = (job_.first_round + index) % INLINE_VERSIONS;
    const inline_result& kept = slot.state.results[version];
    return complete(state) - index <= INLINE_VERSIONS && kept.block == right.block &&
           kept.next == right.next && kept.exponent == right.exponent &&
           (right.block == INLINE_NONE ||
            !std::memcmp(slot.sums[version], right.sum.data(), INLINE_BLOCK_BYTES));
  }
  // Grows with each step to another state, so no run goes round in a circle.
  uint64_t progress(uint32_t state) const {
    const inline_slot& slot = states_[state].state;
    uint64_t all = uint64_t{complete(state)} * 10'000 + uint64_t(__builtin_popcount(slot.seen));
    for (uint32_t w = 0; w < job_.workers; ++w) all += 100 * (slot.heard[w] - job_.first_round);
    return all;
  }
  const std::string& result(uint32_t index) const { return results_[index]; }
  size_t rounds() const { return expected_.size(); }
  size_t size() const { return states_.size(); }
  const std::array<uint64_t, omnihvd::kInlineCounts>& counts() const { return machine_.counts(); }

 private:
  using Slot = SlotAggregator::Slot;

  uint32_t keep(const Slot& slot) {
    const std::string key(reinterpret_cast<const char*>(&slot), sizeof slot);
    const auto [at, is_new] = numbers_.emplace(key, uint32_t(states_.size()));
    if (is_new) {
      states_.push_back(slot);
      steps_.emplace_back();
    }
    return at->second;
  }

  Step run(uint32_t state, const std::string& contribution) {
    machine_.slots_[slot_] = states_[state];
    const auto impossible = size_t(omnihvd::InlineCount::impossible);
    const auto answer =
        machine_.take(reinterpret_cast<const uint8_t*>(contribution.data()), contribution.size());
    must(machine_.counts()[impossible] == 0, "a worker's contribution is called impossible");
    Step step;
    step.to = keep(machine_.slots_[slot_]);
    must(step.to == state || progress(step.to) > progress(state),
         "a slot changes without progress");
    must(complete(step.to) <= expected_.size(), "a slot has too many rounds");
    if (answer.to == SlotAggregator::To::nobody) return step;
    const uint32_t index = answer.head.round - job_.first_round;
    must(index < complete(step.to), "a result of a round that is not over");
    must_be_right(answer, expected_[index]);
    std::string bytes(reinterpret_cast<const char*>(&answer.head), sizeof answer.head);
    bytes.append(static_cast<const char*>(answer.block.data), answer.block.size);
    if (answer.to == SlotAggregator::To::all) {
      must(index + 1 == complete(step.to), "an old result goes to all");
      if (results_[index].empty()) results_[index] = bytes;
    } else {
      step.answered = index;
    }
    return step;
  }

  void must_be_right(const SlotAggregator::Answer& answer, const Expected& right) const {
    const inline_head& head = answer.head;
    const bool has_block = right.block != INLINE_NONE;
    must(head.kind == INLINE_RESULT && head.key == kKey && head.slot == slot_ && head.job == 0 &&
             head.flags == (has_block ? INLINE_BLOCK : 0) && head.block == right.block &&
             head.next == right.next && head.exponent == right.exponent,
         "a result's head is wrong");
    must(answer.block.size == (has_block ? INLINE_BLOCK_BYTES : 0) &&
             (!has_block || !std::memcmp(answer.block.data, right.sum.data(), INLINE_BLOCK_BYTES)),
         "a result's sum is wrong");
  }

  const Job& job_;
  const uint16_t slot_;
  const Contributions& sent_;
  const std::vector<Expected> expected_;
  SlotAggregator machine_;
  std::vector<std::string> results_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<Slot> states_;
  std::vector<std::vector<Step>> steps_;
};

// A worker, with all that it has ever sent. It begins the next sum as soon as one has ended: when
// its openings arrive is the network's choice anyway.
class WorkerStates {
 public:
  WorkerStates(const Job& job, uint16_t worker, Contributions& sent)
      : job_(job), worker_(worker), sent_(sent) {
    State first(job, worker);
    for (auto& slot : first.machine.slots_) slot.round = job.first_round;
    first.begin(0);
    send(&first);
    keep(first);
  }

  // The state after a result.
  uint32_t take(uint32_t state, uint16_t slot, uint32_t index, const std::string& result) {
    return after(state, slot * 64u + index + 1, [&](State* now) {
      const auto* const data = reinterpret_cast<const uint8_t*>(result.data());
      must(now->machine.take(kNow, data, result.size()), "a worker refuses a right result");
      if (now->sum < job_.has.size() && now->machine.done()) now->end(job_);
      if (job_.prompt || now->machine.queued_ == 0) send(now);
    });
  }
  // Sends one of the datagrams that wait.
  uint32_t send_one(uint32_t state) {
    return after(state, 0, [&](State* now) {
      send_next(now);
      if (now->machine.queued_ == 0) send(now);
    });
  }

  bool ended(uint32_t state) const { return states_[state].sum == job_.has.size(); }
  bool has_to_send(uint32_t state) const { return states_[state].machine.queued_ > 0; }
  bool awaits(uint32_t state, uint16_t slot) const { return at(state, slot).open; }
  uint32_t round(uint32_t state, uint16_t slot) const {
    return at(state, slot).round - job_.first_round;
  }
  const std::vector<uint32_t>& sent(uint32_t state) const { return states_[state].sent; }
  uint32_t repeated(uint32_t state, uint16_t slot) const { return states_[state].repeated[slot]; }
  size_t size() const { return states_.size(); }

 private:
  struct State {
    State(const Job& job, uint16_t worker)
        : machine({kKey, 0, worker, uint16_t(job.slots)}, 1, 1),
          tensor(job, worker),
          repeated(job.slots, kNone) {}
    State(const State& other)
        : machine(other.machine),
          tensor(other.tensor),
          sum(other.sum),
          sent(other.sent),
          repeated(other.repeated) {
      machine.tensor_ = &tensor;
    }
    State& operator=(const State&) = delete;
    void begin(uint32_t next) {
      sum = next;
      tensor.begin(sum);
      machine.begin(kNow, tensor);
    }
    void end(const Job& job) {
      tensor.must_be_the_sum(machine.own_blocks(), machine.united_blocks());
      if (sum + 1 < job.has.size())
        begin(sum + 1);
      else
        ++sum;
    }

    SlotWorker machine;
    Tensor tensor;
    uint32_t sum = 0;
    std::vector<uint32_t> sent;      // contributions, ascending
    std::vector<uint32_t> repeated;  // [slot]: what it repeats after a time-out
  };

  const SlotWorker::Slot& at(uint32_t state, uint16_t slot) const {
    return states_[state].machine.slots_[slot];
  }

  // Sends all that waits. Then all open slots repeat theirs: a time-out may come at once, and what
  // it sends may arrive as late as if it had come later.
  void send(State* state) const {
    SlotWorker& machine = state->machine;
    while (send_next(state) != kNone) {
    }
    state->repeated.assign(job_.slots, kNone);
    for (uint32_t i = 0; i < job_.slots; ++i) {
      if (!machine.slots_[i].open) continue;
      for (auto& slot : machine.slots_) slot.due = UINT64_MAX;
      machine.slots_[i].due = machine.check_at_ = kNow;
      state->repeated[i] = send_next(state);
    }
  }

  // Returns the number of what is sent; kNone: nothing.
  uint32_t send_next(State* state) const {
    uint8_t out[INLINE_FULL_BYTES];
    const size_t size = state->machine.next(kNow, out);
    if (size == 0) return kNone;
    const uint32_t number = sent_.number_of(out, size);
    const auto place = std::lower_bound(state->sent.begin(), state->sent.end(), number);
    if (place == state->sent.end() || *place != number) state->sent.insert(place, number);
    return number;
  }

  template <class Do>
  uint32_t after(uint32_t from, uint32_t what, Do what_happens) {
    const uint64_t key = uint64_t{from} << 32 | what;
    const auto known = steps_.find(key);
    if (known != steps_.end()) return known->second;
    State now(states_[from]);
    what_happens(&now);
    const uint32_t to = keep(now);
    must(to == from || progress(states_[to]) > progress(states_[from]),
         "a worker changes without progress");
    steps_.emplace(key, to);
    return to;
  }

  uint64_t progress(const State& state) const {
    uint64_t all = uint64_t{state.sum} * 1'000'000 + state.sent.size() * 100;
    for (const auto& slot : state.machine.slots_)
      all += uint64_t{slot.round - job_.first_round} * 10'000 + slot.asked * 1000;
    return all - state.machine.queued_;
  }

  uint32_t keep(State& state) {
    SlotWorker& machine = state.machine;
    machine.counts_ = {};
    machine.trips_ = {};
    machine.check_at_ = UINT64_MAX;
    machine.moved_at_ = 0;
    std::string key;
    for (auto& slot : machine.slots_) {
      slot.sent_at = 0;
      slot.due = UINT64_MAX;
      slot.tries = 0;
      for (const uint32_t number : {slot.round, slot.block, slot.next}) append(&key, number);
      for (const uint8_t byte :
           {slot.exponent, slot.next_exponent, uint8_t(slot.open), uint8_t(slot.owner),
            uint8_t(slot.queued), uint8_t(slot.repeat), uint8_t(slot.asked)})
        append(&key, byte);
    }
    for (size_t i = 0; i < machine.queued_; ++i)
      append(&key, machine.queue_[(machine.first_ + i) % machine.queue_.size()]);
    append(&key, machine.queued_);
    append(&key, machine.open_);
    append(&key, machine.own_);
    append(&key, machine.united_);
    append(&key, state.sum);
    for (const Block& block : state.tensor.data) append(&key, block);
    for (const uint32_t number : state.sent) append(&key, number);
    for (const uint32_t number : state.repeated) append(&key, number);
    const auto [found, is_new] = numbers_.emplace(key, uint32_t(states_.size()));
    if (is_new) states_.emplace_back(state);
    return found->second;
  }

  const Job& job_;
  const uint16_t worker_;
  Contributions& sent_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<State> states_;
  std::unordered_map<uint64_t, uint32_t> steps_;
};

}  // namespace explore
