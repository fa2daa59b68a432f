#include "simulator/csrc/bad_session.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/rare.h"
#include "engine/stats.h"
#include "simulator/csrc/bad_group.h"

namespace omnihvd::simulation {
namespace {

constexpr uint64_t kLongest = 144'000'000'000;  // microseconds
constexpr uint64_t kSettles = 60'000'000;
constexpr uint64_t kMostEvents = 20'000'000;
constexpr uint32_t kBeginnings = 3;  // of a machine's processes

std::map<std::string, uint64_t> named(const BadNetwork::Counts& counts) {
  return {{"datagrams", counts.datagrams}, {"lost", counts.lost},     {"twice", counts.twice},
          {"late", counts.late},           {"cut", counts.cut},       {"crashes", counts.crashes},
          {"jumps", counts.jumps},         {"pauses", counts.pauses}, {"partly", counts.partly}};
}

class Run : private RarePaths {  // takes rare paths at random
 public:
  Run(uint64_t seed, bool long_sums)
      : prng_(seed),
        plan_(make_session_plan(prng_, long_sums)),
        network_(
            plan_.all() * kBeginnings, plan_.faults, prng_,
            [this](uint32_t to, uint32_t, const BadNetwork::Bytes& bytes) {
              ++messages_;
              all_[to]->transport.came(bytes);
            },
            [this](uint32_t from, uint64_t name) { all_[from]->transport.sent(name); }),
        world_{plan_, prng_, network_},
        refusals_(plan_.refusals) {}

  BadOutcome run();
  const SessionPlan& plan() const { return plan_; }

 private:
  BadProcess& start(uint32_t machine);
  void end(const SessionPlan::Crash& crash);
  bool over() const;
  void check_nothing_is_left();
  void step();

  bool takes(Rare path) override {
    if (path == Rare::no_memory) {
      if (refusals_ == 0 || !prng_.chance(plan_.refused)) return false;
      --refusals_;
      ++refused_;
      return true;
    }
    const double chance = path == Rare::short_refer ? plan_.refers : plan_.rare;
    const bool taken = chance > 0 && prng_.chance(chance);
    rare_ += taken;
    return taken;
  }

  Prng prng_;
  const SessionPlan plan_;
  BadNetwork network_;
  BadWorld world_;
  std::vector<std::unique_ptr<BadProcess>> all_;  // [host]; null: not begun
  std::deque<BadGroup> groups_;
  uint32_t refusals_;  // left
  uint64_t messages_ = 0, events_ = 0, restarts_ = 0, refused_ = 0, rare_ = 0;
};

// A machine has several hosts in the network, one for each of its successive processes.
BadProcess& Run::start(uint32_t machine) {
  uint32_t host = machine;
  while (all_[host]) host += plan_.all();
  all_[host] = std::make_unique<BadProcess>(network_, prng_, host);
  world_.processes[machine] = all_[host].get();
  return *all_[host];
}

void Run::end(const SessionPlan::Crash& crash) {
  const uint32_t host = world_.processes[crash.machine]->host;
  network_.stop(host);
  const auto later = [this](uint64_t us, std::function<void()> then) {
    network_.at(network_.now() + us, network_.nobody(), std::move(then));
  };
  if (crash.noticed_us != SessionPlan::kNever)
    later(crash.noticed_us, [this, host] {
      for (const auto& process : all_)
        if (process && process->alive()) process->transport.ended(host);
    });
  const bool again = crash.again_us != SessionPlan::kNever;
  if (again)
    later(crash.again_us, [this, machine = crash.machine] {
      start(machine);
      ++restarts_;
      for (BadGroup& group : groups_) group.began_again(machine);
    });
  for (BadGroup& group : groups_) group.ended(crash.machine, again);
}

bool Run::over() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const BadGroup& group) { return group.over(); });
}

void Run::step() {
  if (++events_ > kMostEvents || !network_.step()) throw Error("it goes on for ever");
  if (world_.wrong) throw Error(*world_.wrong);
}

BadOutcome Run::run() {
  const RarePaths::Asked asked(this);
  const uint64_t refused = stats().messages_refused;
  all_.resize(plan_.all() * kBeginnings);
  world_.processes.resize(plan_.all());
  for (uint32_t machine = 0; machine < plan_.all(); ++machine) start(machine);
  for (const GroupPlan& group : plan_.groups) groups_.emplace_back(world_, group);
  for (const SessionPlan::Crash& crash : plan_.crashes)
    network_.at(crash.at_us, network_.nobody(), [this, &crash] {
      if (world_.processes[crash.machine]->alive()) end(crash);
    });
  while (!over()) {
    if (network_.now() > kLongest) throw Error("sums have not ended in the end");
    step();
  }
  check_nothing_is_left();
  if (stats().messages_refused != refused) throw Error("a message was refused");
  BadOutcome outcome;
  outcome.job = plan_.words();
  outcome.sums = world_.right;
  outcome.events = events_;
  outcome.messages = messages_;
  outcome.seconds = double(network_.now()) * 1e-6;
  outcome.counts = named(network_.counts());
  outcome.counts["failed"] = world_.failed;
  outcome.counts["joined"] = world_.joined;
  outcome.counts["not_joined"] = world_.not_joined;
  outcome.counts["restarts"] = restarts_;
  outcome.counts["refused"] = refused_;
  outcome.counts["rare"] = rare_;
  return outcome;
}

// Aggregators learn that all ranks have left.
void Run::check_nothing_is_left() {
  if (plan_.hopeless() || world_.not_joined > 0) return;
  const auto is_left = [](const auto& part) { return !part.expired(); };
  const uint64_t end = network_.now() + kSettles;
  while (std::any_of(world_.parts.begin(), world_.parts.end(), is_left)) {
    if (network_.now() > end) throw Error("a group that all have left is still there");
    step();
  }
}

}  // namespace

BadOutcome run_bad_session(uint64_t seed, bool long_sums) {
  Run run(seed, long_sums);
  try {
    return run.run();
  } catch (const std::exception& why) {
    throw Error("seed " + std::to_string(seed) + ": " + why.what() + "; " + run.plan().words());
  }
}

}  // namespace omnihvd::simulation
