// Which sums on GPUs are made on the union of their blocks, for test_gpu_choice.py: what the model
// says, what a choice of one kind of sums wants, and that all ranks plan alike.
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "nccl/union_plans.h"

using namespace omnihvd;

namespace {

// The calls of all ranks, and the union and trailer of each: the same on all ranks.
struct Job {
  std::vector<uint64_t> counts;  // of elements
  std::vector<uint64_t> united;  // blocks, of each call
  std::vector<uint32_t> trailers;
};

// Ranks that make these calls; the callers and the devices get on in an order of their own. Each
// event is a caller's next call, or a device that comes to its next call.
class Ranks {
 public:
  Ranks(size_t ranks, const Job& job)
      : job_(job), model_(int(2 * ranks), 2), ranks_(ranks, Rank(model_)) {}

  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const Rank& r) { return r.calls.size() == job_.counts.size(); });
  }
  // False: nothing can happen there now.
  bool caller(size_t rank) {
    Rank& r = ranks_[rank];
    const size_t number = r.calls.size();
    if (number == job_.counts.size()) return false;
    while (r.plans.is_behind()) {
      const size_t look = r.looks[r.told];
      if (look >= r.device) return false;  // waits for its own device alone
      waited_too_long = waited_too_long || look + UnionPlans::kBehind < number;
      r.plans.saw(job_.united[look], job_.trailers[look]);
      ++r.told;
    }
    UnionCall call = r.plans.next(job_.counts[number], DType::f32);
    if (call.look) r.looks.push_back(number);
    // Each rank measures something else; and at another time.
    r.plans.took(call, 1000 * (rank + 1), 100'000 * (rank + 2) + 1000 * r.device);
    r.calls.push_back(call.look ? 1 + call.capacity : 0);
    return true;
  }
  // The devices wait for each other: none is ahead of a call that some rank has not made.
  bool device(size_t rank) {
    Rank& r = ranks_[rank];
    for (const Rank& other : ranks_)
      if (other.calls.size() <= r.device) return false;
    ++r.device;
    return true;
  }
  bool alike() const {
    return !waited_too_long && std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) {
      return r.calls == ranks_[0].calls;
    });
  }
  const std::vector<uint64_t>& plans() const { return ranks_[0].calls; }

 private:
  struct Rank {
    explicit Rank(const GpuModel& model) : plans(model, 16, 1 << 26, false) {}
    UnionPlans plans;
    std::vector<uint64_t> calls;  // 0: no look; else one more than the capacity
    std::vector<size_t> looks;
    size_t told = 0, device = 0;
  };
  const Job& job_;
  const GpuModel model_;
  std::vector<Rank> ranks_;
  bool waited_too_long = false;
};

Job job_of(unsigned seed, size_t calls) {
  std::mt19937 random{seed};
  Job job;
  for (size_t i = 0; i < calls; ++i) {
    const bool varies = random() % 3 == 0;
    job.counts.push_back(varies ? 6'000'000 + random() % 2'000'000 : 16'000'000 + i % 3);
    const uint64_t blocks = job.counts.back() / 16;
    job.united.push_back(i / 150 % 2 ? blocks / 2 + random() % (blocks / 2) : random() % 1000);
    const GpuTimes times{20'000, 900'000 + random() % 9000, 90'000 + random() % 400'000};
    job.trailers.push_back(trailer_of(seed % 4 == 3 && i >= 380, times));
  }
  return job;
}

// Every order of the last events of two ranks: two calls each, and the two calls to which their
// devices must come for them.
struct AllOrders {
  const Job& job;
  uint64_t orders = 0;
  bool alike = true;

  void explore(std::vector<int>& path) {
    const size_t begun = job.counts.size() - 2;
    Ranks ranks(2, job);
    for (size_t i = 0; i < begun; ++i)
      for (size_t rank : {0, 1}) {
        if (i >= UnionPlans::kBehind) ranks.device(rank);
        ranks.caller(rank);
      }
    int devices[2] = {};
    for (const int event : path) {
      if (event < 2 ? !ranks.caller(size_t(event)) : ++devices[event - 2] > 2) return;
      if (event >= 2) ranks.device(size_t(event) - 2);
    }
    if (ranks.over()) {
      ++orders;
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

// How many orders there are of the last two calls; -1: ranks differed.
long all_orders(unsigned seed, uint64_t calls) {
  const Job job = job_of(seed, calls);
  AllOrders all{job};
  std::vector<int> path;
  all.explore(path);
  return all.alike ? long(all.orders) : -1;
}

// Three ranks, in a random order of events; how many plans there were; -1: ranks differed; -2: they
// got stuck.
long random_order(unsigned seed, long* united, long* left) {
  std::mt19937 random{seed};
  const Job job = job_of(seed, 600);
  Ranks ranks(3, job);
  for (int idle = 0; !ranks.over();) {
    const size_t rank = random() % 3;
    // At times one rank is far ahead of its device.
    const bool calls = random() % (seed % 3 == 0 ? 2 : 20) != 0;
    idle = (calls ? ranks.caller(rank) : ranks.device(rank)) ? 0 : idle + 1;
    if (idle > 10'000) return -2;
  }
  if (!ranks.alike()) return -1;
  std::vector<uint64_t> plans = ranks.plans();
  *united = std::count_if(plans.begin(), plans.end(), [](uint64_t plan) { return plan > 1; });
  *left = std::all_of(plans.begin() + 480, plans.end(), [](uint64_t plan) { return plan == 0; });
  std::sort(plans.begin(), plans.end());
  return std::unique(plans.begin(), plans.end()) - plans.begin();
}

uint64_t estimate_original(int ranks, int hosts, uint64_t bytes) {
  return GpuModel(ranks, hosts).allreduce(bytes);
}
uint64_t estimate_look(int ranks, int hosts, uint64_t bytes, uint64_t blocks, uint64_t original) {
  return GpuModel(ranks, hosts).look(bytes, blocks, original);
}
uint64_t estimate_union(int ranks, int hosts, uint64_t bytes, uint64_t summed, uint64_t part_bytes,
                        uint64_t original) {
  return GpuModel(ranks, hosts).united(bytes, summed, part_bytes, original);
}

void times_through(bool alone, uint64_t* times, bool* is) {  // look, original, united
  const uint32_t trailer = trailer_of(alone, {times[0], times[1], times[2]});
  const GpuTimes got = times_of(trailer);
  times[0] = got.look, times[1] = got.original, times[2] = got.united;
  *is = is_alone(trailer);
}
uint32_t trailer(uint64_t look, uint64_t original, uint64_t united) {
  return trailer_of(false, {look, original, united});
}

void* new_plans(int ranks, int hosts, bool always) {
  const auto* const model = new GpuModel(ranks, hosts);
  return new UnionPlans(*model, 256, 64 << 20, always);
}
// The next call, of float32: its capacity; *look: whether it has one.
uint64_t next(void* plans, uint64_t count, bool* look) {
  const UnionCall call = static_cast<UnionPlans*>(plans)->next(count, DType::f32);
  *look = call.look;
  return call.capacity;
}
bool is_behind(void* plans) { return static_cast<UnionPlans*>(plans)->is_behind(); }
void saw(void* plans, uint64_t united, uint32_t trailer) {
  static_cast<UnionPlans*>(plans)->saw(united, trailer);
}

void* new_choice(int ranks, int hosts, uint64_t bytes, bool always) {
  const auto* const model = new GpuModel(ranks, hosts);
  return new UnionChoice(*model, bytes, 1024, 64 << 20, always);
}
double share_of(void* choice) {
  return double(static_cast<UnionChoice*>(choice)->share()) / UnionChoice::kWhole;
}
// One more sum, called with the present share, or, if stale, with an earlier one.
void add(void* choice, double united, bool stale, uint64_t look, uint64_t original, uint64_t sum) {
  auto& made = *static_cast<UnionChoice*>(choice);
  const auto part = uint64_t(united * UnionChoice::kWhole);
  const uint64_t share = stale ? made.share() + 1 : made.share();
  made.saw({part, share, part > share, {look, original, sum}});
}
}
