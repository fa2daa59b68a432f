// Explores every state that a small job of an in-network aggregator can reach over a network that
// forgets nothing: any datagram that was ever sent may arrive at any time, any number of times, or
// never. So each loss, duplicate and order is covered, without a bound on their number.
//
// In each state: a result that a worker awaits is still there; what slots send and workers sum is
// exact. And the run can go on by fair events alone: a time-out, the datagram that it sends, and
// the aggregator's answer to it. Each step makes progress, and progress is bounded, so every run in
// which no datagram is lost for ever ends.
//
//   explore < jobs    a job a line: slots, first round, prompt (0, 1), blocks, workers, then for
//                     each sum and worker the bits of its blocks
//
// Writes a line of JSON for each job; for a violation also the shortest run that leads to it.
#include <cstdio>
#include <iostream>
#include <sstream>

#include "innetwork/fpisa.h"
#include "innetwork/integers.h"
#include "machines.h"

namespace omnihvd {

// Only integers are summed here.
const BlockOps& block_ops(DType) {
  static const BlockOps ops = [] {
    BlockOps made{};
    made.store = [](void* sums, const void* block, size_t n) { std::memcpy(sums, block, 4 * n); };
    made.add = [](void* sums, const void* block, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        uint32_t to, from;
        std::memcpy(&to, static_cast<uint8_t*>(sums) + 4 * i, 4);
        std::memcpy(&from, static_cast<const uint8_t*>(block) + 4 * i, 4);
        to += from;
        std::memcpy(static_cast<uint8_t*>(sums) + 4 * i, &to, 4);
      }
    };
    made.finish = [](void*, const void*, size_t) {};
    return made;
  }();
  return ops;
}
const BlockOps& fpisa::ops(bool) { return block_ops(DType::i32); }
const IntegerOps& integer_ops() {  // no worker here sends codes
  static const IntegerOps none{};
  return none;
}

}  // namespace omnihvd

namespace explore {
namespace {

constexpr uint32_t kMostWorkers = 3, kMostSlots = 2;
constexpr size_t kMostStates = 60'000'000;

using State = std::array<uint32_t, kMostSlots + kMostWorkers>;  // numbers: of slots, of workers

// States in the order in which they were found.
class Found {
 public:
  struct Way {
    uint32_t from;   // index of a state
    uint16_t party;  // that received: of slots, then of workers
    uint16_t what;   // a contribution, or the index of a result's round in its slot
    uint16_t slot;   // of the result; kMostSlots: the worker sends what waits
  };
  Found() : table_(1 << 16, kNone) {}
  void add(const State& state, const Way& way) {
    if (2 * states.size() >= table_.size()) grow();
    uint32_t* const place = find(state);
    if (*place != kNone) return;
    must(states.size() < kMostStates, "too many states to explore");
    *place = uint32_t(states.size());
    states.push_back(state);
    ways.push_back(way);
  }

  std::vector<State> states;
  std::vector<Way> ways;  // by which each was found

 private:
  uint32_t* find(const State& state) {
    uint64_t hash = 0;
    for (const uint32_t number : state) {
      hash = (hash ^ number) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    for (size_t i = hash;; ++i) {
      uint32_t& place = table_[i & (table_.size() - 1)];
      if (place == kNone || states[place] == state) return &place;
    }
  }
  void grow() {
    table_.assign(4 * table_.size(), kNone);
    for (uint32_t i = 0; i < states.size(); ++i) *find(states[i]) = i;
  }
  std::vector<uint32_t> table_;
};

class Exploration {
 public:
  explicit Exploration(const Job& job) : job_(job) {
    for (uint32_t s = 0; s < job.slots; ++s) slots_.emplace_back(job, uint16_t(s), sent_);
    for (uint32_t w = 0; w < job.workers; ++w) workers_.emplace_back(job, uint16_t(w), sent_);
  }

  // Returns the violation that it found, if any.
  std::string run() {
    uint32_t at = 0;
    try {
      found_.add(State{}, {});
      for (; at < found_.states.size(); ++at) {
        const State now = found_.states[at];
        check(now);
        step(now, at);
      }
      must(ended_ > 0, "no run ends");
    } catch (const std::exception& why) {
      return why.what() + story(std::min(at, uint32_t(found_.states.size() - 1)));
    }
    return {};
  }

  std::string json(const std::string& violation) const {
    std::ostringstream out;
    size_t slot_states = 0, worker_states = 0, rounds = 0;
    for (const auto& slot : slots_) {
      slot_states += slot.size();
      rounds += slot.rounds();
    }
    for (const auto& worker : workers_) worker_states += worker.size();
    out << "{\"states\": " << found_.states.size() << ", \"steps\": " << steps_
        << ", \"ends\": " << ended_ << ", \"rounds\": " << rounds
        << ", \"contributions\": " << sent_.size() << ", \"slot_states\": " << slot_states
        << ", \"worker_states\": " << worker_states << ", \"counts\": {";
    for (size_t i = 0; i < omnihvd::kInlineCounts; ++i) {
      uint64_t count = 0;
      for (const auto& slot : slots_) count += slot.counts()[i];
      out << (i ? ", " : "") << '"' << omnihvd::kInlineCountNames[i] << "\": " << count;
    }
    out << "}, \"violation\": \"" << violation << "\"}";
    return out.str();
  }

 private:
  void check(const State& now) {
    bool ended = true, can_go_on = false;
    for (uint32_t w = 0; w < job_.workers; ++w) {
      const WorkerStates& worker = workers_[w];
      const uint32_t state = now[kMostSlots + w];
      ended &= worker.ended(state);
      can_go_on |= worker.has_to_send(state);
      for (uint16_t s = 0; s < job_.slots && !worker.ended(state); ++s) {
        if (!worker.awaits(state, s)) continue;
        const uint32_t round = worker.round(state, s);
        must(round <= slots_[s].complete(now[s]), "a worker is ahead of its slot");
        must(slots_[s].holds(now[s], round), "a result is overwritten that a worker needs");
        can_go_on = can_go_on || goes_on(now, w, s);
      }
    }
    ended_ += ended;
    must(ended || can_go_on, "no fair event leads on from here");
  }

  // Does this slot's time-out lead on, if what it causes arrives?
  bool goes_on(const State& now, uint32_t w, uint16_t s) {
    const uint32_t repeated = workers_[w].repeated(now[kMostSlots + w], s);
    if (repeated == kNone) return false;
    const auto step = slots_[s].take(now[s], repeated);
    if (step.to != now[s]) return true;
    if (step.answered == kNone) return false;
    const uint32_t worker = now[kMostSlots + w];
    return workers_[w].take(worker, s, step.answered, slots_[s].result(step.answered)) != worker;
  }

  void step(const State& now, uint32_t from) {
    for (uint32_t w = 0; w < job_.workers; ++w) {
      const uint32_t worker = now[kMostSlots + w];
      for (const uint32_t number : workers_[w].sent(worker)) {
        const uint16_t s = sent_[number].slot;
        go(now, from, s, slots_[s].take(now[s], number).to, uint16_t(number), s);
      }
      const uint16_t party = uint16_t(kMostSlots + w);
      if (workers_[w].has_to_send(worker))
        go(now, from, party, workers_[w].send_one(worker), 0, kMostSlots);
      for (uint16_t s = 0; s < job_.slots; ++s)
        for (uint32_t index = 0; index < slots_[s].complete(now[s]); ++index)
          go(now, from, party, workers_[w].take(worker, s, index, slots_[s].result(index)),
             uint16_t(index), s);
    }
  }

  void go(const State& now, uint32_t from, uint16_t party, uint32_t to, uint16_t what,
          uint16_t slot) {
    ++steps_;
    if (now[party] == to) return;
    State next = now;
    next[party] = to;
    found_.add(next, {from, party, what, slot});
  }

  // The run that leads to a state.
  std::string story(uint32_t at) const {
    std::string all;
    for (; at != 0; at = found_.ways[at].from) {
      const Found::Way& way = found_.ways[at];
      std::ostringstream line;
      if (way.party < kMostSlots) {
        inline_head head;
        std::memcpy(&head, sent_[way.what].bytes.data(), sizeof head);
        line << "; slot " << head.slot << " takes " << (head.flags & INLINE_REPEAT ? "again " : "")
             << "round " << head.round - job_.first_round << " of worker " << head.worker;
      } else if (way.slot == kMostSlots) {
        line << "; worker " << way.party - kMostSlots << " sends";
      } else {
        line << "; worker " << way.party - kMostSlots << " takes the result of round " << way.what
             << " of slot " << way.slot;
      }
      all = line.str() + all;
    }
    return all;
  }

  const Job& job_;
  Contributions sent_;
  std::vector<SlotStates> slots_;
  std::vector<WorkerStates> workers_;
  Found found_;
  uint64_t steps_ = 0, ended_ = 0;
};

Job job_of(const std::string& line) {
  std::istringstream in(line);
  Job job{};
  in >> job.slots >> job.first_round >> job.prompt >> job.blocks >> job.workers;
  if (!in || job.slots > kMostSlots || job.workers > kMostWorkers)
    throw std::invalid_argument("no job: " + line);
  for (uint32_t bits = 0, i = 0; in >> bits; ++i) {
    if (i % job.workers == 0) job.has.emplace_back();
    job.has.back().push_back(bits);
  }
  return job;
}

}  // namespace
}  // namespace explore

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const explore::Job job = explore::job_of(line);
    explore::Exploration exploration(job);
    const std::string violation = exploration.run();
    std::cout << exploration.json(violation) << std::endl;
  }
}
