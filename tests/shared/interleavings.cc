// Runs ranks that make small sums (small_steps.h) through all interleavings of their accesses to
// shared memory, and through all values that a load may return: interleavings CASE
//
// It prints "well, N states", or the first fault that it finds: a race on a buffer, a sum of other
// elements, or ranks that wait for ever.
//
// The model. Each rank has a vector clock, and each message in the history of an atomic the clock
// of the rank that stored it. A load that acquires returns any message that no later message
// happening before the load hides, and joins its clock. A load that is sequentially consistent
// returns the last message. An access to a buffer is a race unless all conflicting ones happen
// before it. The steps are the tables that the engine runs; the bell is Bell of small_memory.h,
// access by access.
//
// Stamps only grow, so one step stands for the loads of all ranks' stamps: they find all that is
// awaited if it is there at the last load, and miss a stamp if one load may miss it. They join the
// least: the first message of each rank that is no earlier than the awaited one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "algorithms/shared_memory/small_steps.h"

using namespace omnihvd;

namespace {

enum class Order { relaxed, acquire_release, sequential };
enum class Sum { whole, shared, apart };  // apart: a call by another algorithm
enum class Fault {
  none,
  one_buffer,
  awaits_no_given,
  awaits_no_added,
  stamps_before_work,
  looks_before_it_stamps,  // for sleepers
  reads_rung_late,         // after it has looked at the stamps
  announces_late,          // after that, too
  wakes_nobody,
};

struct Case {
  const char* name;
  int ranks;
  std::vector<Sum> sums;
  bool sleeps;  // or polls only
  Order stamps = Order::sequential, bell = Order::sequential;
  Fault fault = Fault::none;
};

constexpr size_t kMostRanks = 3;
using Clock = std::array<uint8_t, kMostRanks>;

struct Message {
  uint8_t value, writer;
  Clock clock;
};
struct Atomic {
  uint8_t count = 1;
  std::array<Message, 12> history = {};  // the first is zero
  const Message& last() const { return history[count - 1u]; }
};

struct Data {  // a share of a buffer, or its SmallCall; one rank writes it
  uint8_t value = 0, written = 0;
  Clock read = {};
};

// Where a rank is: before this access.
enum At : uint8_t {
  poll,
  announce,
  read_rung,
  look_again,
  sleep,
  asleep,
  leave_bell,
  work,
  stamp,
  look_for_sleepers,
  look_before_ring,
  ring,
  finished
};

struct Rank {
  At at = work;
  uint8_t sum = 0, step = 0, seen = 0;
  Clock clock = {};
};

struct State {
  std::array<Rank, kMostRanks> ranks;
  std::array<std::array<Atomic, 2>, kMostRanks> stamps;  // given, added
  Atomic rung, sleepers;
  std::array<std::array<std::array<Data, kMostRanks + 1>, kSmallBuffers>, kMostRanks> data;
};

class Checker {
 public:
  explicit Checker(const Case& c) : case_(c) {}

  std::string check() {
    State first = {};
    for (size_t rank = 0; rank < ranks(); ++rank) first.ranks[rank].clock[rank] = 1;
    for (size_t rank = 0; rank < ranks(); ++rank) enter(first, rank);
    add(first);
    while (!open_.empty() && fault_.empty()) {
      const State state = open_.back();
      open_.pop_back();
      size_t ended = 0, stuck = 0;
      for (size_t rank = 0; rank < ranks(); ++rank) {
        ended += state.ranks[rank].at == finished;
        stuck += state.ranks[rank].at == asleep;
        move(state, rank);
      }
      ends_ += ended == ranks();
      if (stuck > 0 && ended + stuck == ranks()) fault_ = "ranks sleep for ever";
    }
    if (fault_.empty() && ends_ == 0) fault_ = "ranks poll for ever";
    return fault_.empty() ? "well: " + std::to_string(seen_.size()) + " states" : fault_;
  }

 private:
  const Case& case_;
  std::vector<State> open_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;
  std::string fault_;
  size_t ends_ = 0;  // states in which all ranks have finished

  bool has(Fault fault) const { return case_.fault == fault; }
  size_t ranks() const { return size_t(case_.ranks); }

  // --- states ------------------------------------------------------------------------------------

  static uint64_t hash(const State& state, uint64_t h) {
    static_assert(std::is_trivially_copyable_v<State> && alignof(State) == 1);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&state);
    for (size_t i = 0; i < sizeof state; ++i) {
      h = (h ^ bytes[i]) * 0x9E3779B97F4A7C15u;
      h ^= h >> 29;
    }
    return h;
  }
  // 128 bits stand for a state: no two of some millions are alike by chance.
  void add(const State& state) {
    if (seen_.emplace(hash(state, 1), hash(state, 0x51ED270B7F4A7C15u)).second)
      open_.push_back(state);
  }

  // --- memory ------------------------------------------------------------------------------------

  static void join(Clock& clock, const Clock& other) {
    for (size_t i = 0; i < kMostRanks; ++i) clock[i] = std::max(clock[i], other[i]);
  }

  static void store(Rank& mine, size_t rank, Atomic& atomic, uint8_t value, Order order) {
    atomic.history.at(atomic.count++) = {value, uint8_t(rank),
                                         order == Order::relaxed ? Clock{} : mine.clock};
    ++mine.clock[rank];
  }

  // A read-modify-write of the bell takes the last value. A bell that is sequentially consistent
  // carries no clock: buffers must be safe without it, and there are fewer states.
  void change(Rank& mine, size_t rank, Atomic& atomic, int by) {
    const Message last = atomic.last();
    const auto value = uint8_t(last.value + by);
    if (case_.bell == Order::sequential) {
      atomic.history[0].value = value;
      return;
    }
    join(mine.clock, last.clock);
    store(mine, rank, atomic, value, case_.bell);
  }

  // Calls then(message) for each message that a load of this rank may return.
  template <typename Then>
  static void each_readable(const Rank& mine, const Atomic& atomic, Order order, Then then) {
    for (size_t i = atomic.count; i-- > 0;) {
      const Message& message = atomic.history[i];
      then(message);
      const bool hides = message.clock[message.writer] <= mine.clock[message.writer];
      if (order != Order::acquire_release || hides) return;
    }
  }

  // Loads a word of the bell. Calls then(state, its rank, value) and adds the state, for each
  // value.
  template <typename Then>
  void load(const State& state, size_t rank, const Atomic& atomic, Then then) {
    each_readable(state.ranks[rank], atomic, case_.bell, [&](const Message& message) {
      State next = state;
      if (case_.bell != Order::sequential) join(next.ranks[rank].clock, message.clock);
      then(next, next.ranks[rank], message.value);
      add(next);
    });
  }

  void read(State& state, size_t rank, size_t owner, size_t buffer, size_t share, uint8_t value) {
    Data& data = state.data[owner][buffer][share];
    const Clock& clock = state.ranks[rank].clock;
    if (!fault_.empty()) return;
    if (data.written > clock[owner])
      fault_ = "a race";
    else if (data.value != value)
      fault_ = "a sum of other elements";
    data.read[rank] = clock[rank];
  }

  void write(State& state, size_t rank, size_t buffer, size_t share, uint8_t value) {
    Data& data = state.data[rank][buffer][share];
    const Clock& clock = state.ranks[rank].clock;
    for (size_t reader = 0; reader < ranks(); ++reader)
      if (data.read[reader] > clock[reader]) fault_ = "a race";
    data.value = value;
    data.written = clock[rank];
  }

  // --- a rank ------------------------------------------------------------------------------------

  Sum sum_of(const Rank& mine) const { return case_.sums[mine.sum]; }
  SmallStep step_of(const Rank& mine) const {
    SmallStep step = sum_of(mine) == Sum::whole ? kWholeSteps[mine.step] : kSharedSteps[mine.step];
    const bool off =
        step.awaited == Stamp::given ? has(Fault::awaits_no_given) : has(Fault::awaits_no_added);
    if (off) step.awaited = Stamp::none;
    return step;
  }
  // The number of this small sum: their buffers alternate.
  size_t number_of(const Rank& mine) const {
    return 1 + size_t(std::count_if(case_.sums.begin(), case_.sums.begin() + mine.sum,
                                    [](Sum sum) { return sum != Sum::apart; }));
  }
  static size_t index_of(Stamp stamp) { return stamp == Stamp::given ? 0 : 1; }

  // To the begin of a step. Work is done at once: it touches no atomic, and clocks find its races.
  void enter(State& state, size_t rank) {
    Rank& mine = state.ranks[rank];
    while (mine.sum < case_.sums.size() && sum_of(mine) == Sum::apart) ++mine.sum;
    mine.seen = 0;
    mine.at = finished;
    if (mine.sum == case_.sums.size()) return;
    mine.at = poll;
    if (step_of(mine).awaited == Stamp::none) begin(state, rank);
  }
  void begin(State& state, size_t rank) {
    Rank& mine = state.ranks[rank];
    const bool stamps = step_of(mine).stamped != Stamp::none;
    if (stamps && has(Fault::stamps_before_work)) {
      mine.at = stamp;
      return;
    }
    do_work(state, rank);
    if (!stamps)
      leave(state, rank);
    else
      mine.at = case_.sleeps && has(Fault::looks_before_it_stamps) ? look_for_sleepers : stamp;
  }
  void leave(State& state, size_t rank) {
    Rank& mine = state.ranks[rank];
    if (step_of(mine).stamped != Stamp::none && has(Fault::stamps_before_work))
      do_work(state, rank);
    const size_t steps = sum_of(mine) == Sum::whole ? kWholeSteps.size() : kSharedSteps.size();
    if (++mine.step == steps) {
      mine.step = 0;
      ++mine.sum;
    }
    enter(state, rank);
  }

  void do_work(State& state, size_t rank) {
    const Rank& mine = state.ranks[rank];
    const size_t number = number_of(mine), word = ranks();
    const size_t buffer = has(Fault::one_buffer) ? 0 : buffer_of(number);
    const uint8_t given = uint8_t(2 * number), added = uint8_t(given + 1);
    switch (step_of(mine).work) {
      case SmallWork::give:
        for (size_t share = 0; share <= word; ++share) write(state, rank, buffer, share, given);
        break;
      case SmallWork::add:
        for (size_t owner = 0; owner < ranks(); ++owner) {
          read(state, rank, owner, buffer, word, given);
          for (size_t share = 0; share < ranks(); ++share)
            if (sum_of(mine) == Sum::whole || share == rank)
              read(state, rank, owner, buffer, share, given);
        }
        if (sum_of(mine) == Sum::shared) write(state, rank, buffer, rank, added);
        break;
      case SmallWork::take:
        for (size_t owner = 0; owner < ranks(); ++owner)
          if (owner != rank) read(state, rank, owner, buffer, owner, added);
    }
  }

  // Loads all stamps: all(state, its rank) where they may have come, late(...) where one may not.
  template <typename All, typename Late>
  void look(const State& state, size_t rank, Stamp awaited, All all, Late late) {
    const Rank& now = state.ranks[rank];
    State come = state;
    bool all_come = true, any_late = false;
    for (size_t other = 0; other < ranks(); ++other) {
      const Atomic& theirs = state.stamps[other][index_of(awaited)];
      all_come &= theirs.last().value > now.sum;
      each_readable(now, theirs, case_.stamps,
                    [&](const Message& message) { any_late |= message.value <= now.sum; });
      const Message* first = &theirs.history[0];
      while (all_come && first->value <= now.sum) ++first;
      if (case_.stamps != Order::relaxed) join(come.ranks[rank].clock, first->clock);
    }
    if (all_come) {
      all(come, come.ranks[rank]);
      add(come);
    }
    if (any_late) {
      State next = state;
      late(next, next.ranks[rank]);
      add(next);
    }
  }

  void move(const State& state, size_t rank) {
    const Rank& now = state.ranks[rank];
    State next = state;
    Rank& mine = next.ranks[rank];
    const auto to = [](At at) { return [at](State&, Rank& then) { then.at = at; }; };
    const auto on = [&](State& then, Rank&) { leave(then, rank); };
    switch (now.at) {
      case poll:
        return look(
            state, rank, step_of(now).awaited, [&](State& then, Rank&) { begin(then, rank); },
            to(!case_.sleeps                ? poll
               : has(Fault::announces_late) ? read_rung
                                            : announce));
      case announce:
        change(mine, rank, next.sleepers, 1);
        mine.at = has(Fault::announces_late)    ? sleep
                  : has(Fault::reads_rung_late) ? look_again
                                                : read_rung;
        return add(next);
      case read_rung:
        return load(state, rank, state.rung, [&](State&, Rank& then, uint8_t value) {
          then.seen = value;
          then.at = has(Fault::reads_rung_late) ? sleep : look_again;
        });
      case look_again:
        return look(state, rank, step_of(now).awaited, to(leave_bell),
                    to(has(Fault::announces_late)    ? announce
                       : has(Fault::reads_rung_late) ? read_rung
                                                     : sleep));
      case sleep:  // the kernel compares under a lock that wake-ups take, too
        mine.at = state.rung.last().value == now.seen ? asleep : leave_bell;
        return add(next);
      case leave_bell:
        change(mine, rank, next.sleepers, -1);
        mine.seen = 0;
        mine.at = poll;
        return add(next);
      case stamp: {
        const Stamp stamped = step_of(now).stamped;
        store(mine, rank, next.stamps[rank][index_of(stamped)], uint8_t(mine.sum + 1),
              case_.stamps);
        if (!case_.sleeps)
          leave(next, rank);
        else if (!has(Fault::looks_before_it_stamps))
          mine.at = look_for_sleepers;
        else if (mine.seen > 0)
          mine.at = look_before_ring;
        else
          leave(next, rank);
        return add(next);
      }
      case look_for_sleepers:
        return load(state, rank, state.sleepers, [&](State& then, Rank& me, uint8_t value) {
          me.seen = value > 0;
          if (has(Fault::looks_before_it_stamps))
            me.at = stamp;
          else if (value > 0)
            me.at = look_before_ring;
          else
            leave(then, rank);
        });
      case look_before_ring: return look(state, rank, step_of(now).stamped, to(ring), on);
      case ring:
        change(mine, rank, next.rung, 1);
        for (Rank& other : next.ranks)
          if (other.at == asleep && !has(Fault::wakes_nobody)) other.at = leave_bell;
        leave(next, rank);
        return add(next);
      case work:
      case asleep:
      case finished: return;
    }
  }
};

using S = Sum;
constexpr Order kWeak = Order::acquire_release, kStrong = Order::sequential;
const Case kCases[] = {
    // Orders that the data need.
    {"polls", 2, {S::whole, S::whole, S::apart, S::whole, S::whole}, false, kWeak},
    {"polls, shares", 2, {S::shared, S::whole, S::shared, S::shared}, false, kWeak},
    {"polls, of three", 3, {S::whole, S::whole, S::whole}, false, kWeak},
    {"polls, shares of three", 3, {S::shared, S::apart, S::shared, S::shared}, false, kWeak},
    // Orders that the bell needs.
    {"sleeps", 2, {S::whole, S::apart, S::whole, S::whole}, true},
    {"sleeps, shares", 2, {S::shared, S::whole, S::shared}, true},
    {"sleeps, of three", 3, {S::whole, S::whole, S::whole}, true},
    {"sleeps, shares of three", 3, {S::shared, S::shared}, true},
    // Planted faults.
    {"one buffer", 2, {S::whole, S::whole}, false, kWeak, kStrong, Fault::one_buffer},
    {"relaxed stamps", 2, {S::whole}, false, Order::relaxed},
    {"awaits no given", 2, {S::whole}, false, kWeak, kStrong, Fault::awaits_no_given},
    {"awaits no added", 3, {S::shared}, false, kWeak, kStrong, Fault::awaits_no_added},
    {"stamps before work", 2, {S::whole}, false, kWeak, kStrong, Fault::stamps_before_work},
    {"a weak bell", 2, {S::whole}, true, kStrong, kWeak},
    {"weak stamps under a bell", 2, {S::whole}, true, kWeak, kStrong},
    {"weak stamps under a weak bell", 2, {S::whole}, true, kWeak, kWeak},
    {"looks before it stamps",
     2,
     {S::whole},
     true,
     kStrong,
     kStrong,
     Fault::looks_before_it_stamps},
    {"reads rung late", 2, {S::whole}, true, kStrong, kStrong, Fault::reads_rung_late},
    {"announces late", 2, {S::whole}, true, kStrong, kStrong, Fault::announces_late},
    {"wakes nobody", 2, {S::whole}, true, kStrong, kStrong, Fault::wakes_nobody},
};

}  // namespace

int main() {
  for (const Case& each : kCases) {
    std::printf("%s: %s\n", each.name, Checker(each).check().c_str());
    std::fflush(stdout);
  }
}
