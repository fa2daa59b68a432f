// Which sums on GPUs are made on the union of their blocks, for test_gpu_choice.py: what rank 0
// wants, and how the ranks agree on it.
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "nccl/gpu_choice.h"

using namespace omnihvd;

namespace {

// Ranks that make the same calls, and agree on proposals, in one order of all events: `next` says
// whose turn it is, and whether its caller's or its thread's. Whether all had the same plans, and
// nobody waited but for a count of votes.
class Ranks {
 public:
  Ranks(size_t ranks, uint64_t calls, std::vector<UnionProposal> proposals)
      : calls_(calls), proposals_(std::move(proposals)), ranks_(ranks) {}

  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) {
      return r.seen.size() == calls_ && r.rounds == 2 * proposals_.size();
    });
  }
  // False: nothing can happen there now.
  bool caller(size_t rank) {
    Rank& r = ranks_[rank];
    if (r.seen.size() == calls_) return false;
    const auto call = r.plans.next(1000 * (1 + r.seen.size() % 2), DType::f32);  // two tensors
    if (!call) {
      if (r.rounds % 2 == 0) waited_for_nothing = true;
      return false;
    }
    r.seen.push_back(call->capacity + call->two_levels);
    return true;
  }
  // Proposals, and counts of the votes on them, come to all; nobody counts before all have voted.
  bool thread(size_t rank) {
    Rank& r = ranks_[rank];
    if (r.rounds == 2 * proposals_.size()) return false;
    const bool votes = r.rounds % 2 == 0;
    for (const Rank& other : ranks_)
      if (other.rounds < (votes ? r.rounds : r.rounds / 2 * 2 + 1)) return false;
    if (votes)
      r.votes.push_back(r.plans.vote(proposals_[r.rounds / 2]));
    else
      r.plans.count_votes(std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& other) {
        return other.votes[r.rounds / 2];
      }));
    ++r.rounds;
    return true;
  }
  bool alike() const {
    return !waited_for_nothing && std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) {
      return r.seen == ranks_[0].seen;
    });
  }
  bool has(uint64_t capacity) const {  // all are even; on two levels: one more
    const auto& seen = ranks_[0].seen;
    return std::find(seen.begin(), seen.end(), capacity) != seen.end();
  }

 private:
  struct Rank {
    UnionPlans plans{10, false};
    std::vector<uint64_t> seen;
    std::vector<bool> votes;
    size_t rounds = 0;  // a vote and a count each
  };
  const uint64_t calls_;
  const std::vector<UnionProposal> proposals_;
  std::vector<Rank> ranks_;
  bool waited_for_nothing = false;
};

// Every order of the events of two ranks.
struct AllOrders {
  uint64_t from, orders = 0, held = 0;
  bool alike = true;

  void explore(std::vector<int>& path) {
    Ranks ranks(2, 3, {{from, {{0, 76, true}, {1, 76, true}, {2, 76, true}}}});
    for (const int event : path)
      if (!(event < 2 ? ranks.caller(size_t(event)) : ranks.thread(size_t(event) - 2))) return;
    if (ranks.over()) {
      ++orders;
      held += ranks.has(77);
      alike = alike && ranks.alike();
      return;
    }
    for (int event = 0; event < 4; ++event) {
      path.push_back(event);
      explore(path);
      path.pop_back();
    }
  }
};

}  // namespace

extern "C" {

// How many orders there are, and in how many the proposal held; -1: ranks differed.
long all_orders(uint64_t from, long* held) {
  AllOrders all{from};
  std::vector<int> path;
  all.explore(path);
  *held = long(all.held);
  return all.alike ? long(all.orders) : -1;
}

// Three ranks, three proposals, in a random order; -1: ranks differed; -2: they got stuck.
int random_order(unsigned seed) {
  std::mt19937 random{seed};
  std::vector<UnionProposal> proposals;
  for (uint64_t i = 0; i < 3; ++i)
    proposals.push_back({random() % 12, {{uint32_t(random() % 4), 70 + 2 * i, i == 1}}});
  Ranks ranks(3, 12, proposals);
  for (int idle = 0; !ranks.over();) {
    const size_t rank = random() % 3;
    idle = (random() % 2 ? ranks.caller(rank) : ranks.thread(rank)) ? 0 : idle + 1;
    if (idle > 1000) return -2;
  }
  return ranks.alike() ? ranks.has(70) + ranks.has(73) + ranks.has(74) : -1;
}

double estimate(uint64_t bytes, uint64_t summed, double original) {
  return estimate_look(bytes) + estimate_union(bytes, summed, original);
}

void* new_chooser(int setting, int levels) {
  return new UnionChooser(Way(setting), Hierarchy(levels));
}
void saw(void* chooser, uint64_t bytes, uint64_t blocks, uint64_t capacity, uint64_t united) {
  static_cast<UnionChooser*>(chooser)->saw({0, bytes, blocks, capacity, united});
}
void took(void* chooser, int how, double seconds) {
  static_cast<UnionChooser*>(chooser)->took(0, UnionChooser::How(how), seconds);
}
// The capacity that is wanted now, or -1: no change; and on how many levels.
long wanted(void* chooser, int* levels) {
  const auto changes = static_cast<UnionChooser*>(chooser)->changes(16);
  if (changes.empty()) return -1;
  *levels = changes[0].two_levels ? 2 : 1;
  return long(changes[0].capacity);
}
void refused(void* chooser, uint64_t capacity) {
  static_cast<UnionChooser*>(chooser)->refused({{0, capacity}});
}
}
