// One communicator of a simulated session. Its processes bootstrap, agree, sum, and leave. When it
// has failed, the surviving processes form it again, as in an elastic job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/agreement.h"
#include "protocol/tensor.h"
#include "simulator/csrc/bad_process.h"
#include "simulator/csrc/bad_session_plan.h"

namespace omnihvd::simulation {

// The state that all groups share.
struct BadWorld {
  const SessionPlan& plan;
  Prng& prng;
  BadNetwork& network;
  std::vector<BadProcess*> processes{};  // [machine]: the last process that began there
  uint64_t right = 0, failed = 0;        // sums
  uint64_t joined = 0, not_joined = 0;
  std::optional<std::string> wrong{};               // the first wrong end of a sum
  std::vector<std::weak_ptr<GroupStream>> parts{};  // that were made
};

class BadGroup {
 public:
  BadGroup(BadWorld& world, const GroupPlan& plan)
      : world_(world), plan_(plan), expected_(plan.machines.begin(), plan.machines.end()) {
    for (const uint32_t machine : plan.machines)
      world.processes[machine]->after(plan.begins_us, [this, machine] { arrive(machine, false); });
  }

  bool over() const { return over_; }

  // A machine's process has ended. begins_again: another one will begin there...
  void ended(uint32_t machine, bool begins_again) {
    if (over_ || expected_.count(machine) == 0) return;
    if (!begins_again) expected_.erase(machine);
    const bool waited = arrived_.erase(machine) > 0;
    if (!epochs_.empty() && !waited) {
      failed_ = true;
      Epoch& epoch = *epochs_.back();
      const bool joined = std::all_of(epoch.members.begin(), epoch.members.end(),
                                      [](const auto& m) { return m->heard == kRounds; });
      if (!joined) give_up(epoch, "machine " + std::to_string(machine) + " did not come");
    }
    go_on();
  }

  // ...and has.
  void began_again(uint32_t machine) {
    if (!over_ && expected_.count(machine)) arrive(machine, false);
  }

 private:
  using Bytes = BadNetwork::Bytes;
  static constexpr size_t kMostEpochs = 6;
  static constexpr uint64_t kSecond = 1'000'000;
  static constexpr uint32_t kRounds = 3;  // bootstrap: introductions, a decision, all have joined

  // A member's sum.
  struct Own {
    Bytes given, taken;
    uint64_t begun_us;
  };

  struct Member {
    uint32_t machine, rank;
    BadProcess* process;
    Node node;
    std::unique_ptr<GroupAgreement> agreement;
    std::shared_ptr<const GroupInfo> info;
    std::shared_ptr<GroupStream> part;
    std::vector<std::unique_ptr<Own>> sums;
    size_t begun = 0, ended = 0;
    uint32_t heard = 0;  // rounds
    bool failed = false, leaves = false;
  };

  struct Epoch {
    std::vector<uint32_t> machines;  // by rank
    std::vector<std::unique_ptr<Member>> members;
    std::vector<std::string> words;  // of this round of the bootstrap
    size_t said = 0;
    std::optional<std::string> not_joined;    // what the first was told
    std::vector<std::optional<Bytes>> coded;  // by sum, of a lossy codec: what the first rank had
  };

  std::string prng_bytes(size_t size) {
    std::string bytes;
    while (bytes.size() < size) bytes += char(world_.prng.below(256));
    return bytes;
  }

  // The backend that carries a bootstrap times out on all ranks.
  void give_up(Epoch& epoch, const std::string& why) {
    for (const auto& one : epoch.members)
      one->process->after(kSecond, [this, member = one.get(), why] {
        if (member->heard == kRounds || std::exchange(member->leaves, true)) return;
        member->failed = true;
        ++world_.not_joined;
        leave(*member);
      });
  }

  void arrive(uint32_t machine, bool failed) {
    arrived_.insert(machine);
    failed_ |= failed;
    go_on();
  }

  void go_on() {
    if (over_ || arrived_ != expected_) return;
    const std::vector<uint32_t> machines(arrived_.begin(), arrived_.end());
    arrived_.clear();
    over_ = machines.empty() || !failed_ || epochs_.size() == kMostEpochs ||
            (!plan_.same && !epochs_.empty());
    if (!over_) form(machines);
  }

  void form(const std::vector<uint32_t>& machines) {
    failed_ = false;
    epochs_.push_back(std::make_unique<Epoch>());
    Epoch& epoch = *epochs_.back();
    epoch.machines = machines;
    epoch.words.resize(machines.size());
    epoch.coded.resize(plan_.sums.size());
    for (uint32_t rank = 0; rank < machines.size(); ++rank) {
      auto member = std::make_unique<Member>();
      member->machine = machines[rank];
      member->rank = rank;
      member->process = world_.processes[member->machine];
      member->sums.resize(plan_.sums.size());
      member->process->after(world_.prng.below(1000),
                             [this, &epoch, one = member.get()] { introduce(epoch, *one); });
      epoch.members.push_back(std::move(member));
    }
  }

  void introduce(Epoch& epoch, Member& member) {
    const auto at = std::find(plan_.machines.begin(), plan_.machines.end(), member.machine);
    member.node = {"machine " + std::to_string(member.machine),
                   {member.process->transport.address()}};
    member.agreement = std::make_unique<GroupAgreement>(
        member.node, plan_.settings[size_t(at - plan_.machines.begin())], member.rank);
    say(epoch, member, words_of(member.node, [&] { return member.agreement->introduction(); }));
  }

  // Once all members have spoken, each soon receives all their words.
  void say(Epoch& epoch, Member& member, const std::string& words) {
    epoch.words[member.rank] = words;
    if (++epoch.said < epoch.members.size()) return;
    epoch.said = 0;
    for (const auto& one : epoch.members)
      one->process->after(world_.prng.below(200),
                          [this, &epoch, to = one.get(), all = epoch.words] {
                            if (!to->leaves) hear(epoch, *to, all);
                          });
  }

  // As Engine::join() does.
  void hear(Epoch& epoch, Member& member, const std::vector<std::string>& words) {
    std::function<std::string()> next;
    try {
      const std::vector<std::string> contents = contents_of(words);
      switch (member.heard++) {
        case 0:
          member.agreement->hear_introductions(contents);
          next = [&] { return member.rank == 0 ? decide(member) : std::string(); };
          break;
        case 1:
          next = [&, decision = contents[0]] {
            take_part(member, decision);
            return std::string();
          };
          break;
        default:
          ++world_.joined;
          // No Error: that would be a failure to join, as it should have been.
          if (!plan_.same && epoch.machines.size() > 1 && !world_.wrong &&
              epoch.machines.back() == plan_.machines.back())
            world_.wrong = "ranks with different settings have joined a group";
          member.part->all_listen();
          for (uint32_t i = 0; i < plan_.at_once; ++i) begin_next(epoch, member);
          return;
      }
    } catch (const Error& why) {
      return cannot_join(epoch, member, why.what());
    }
    say(epoch, member, words_of(member.node, next));
  }

  // Rank 0 decides, with the dedicated aggregators that it reaches; they join at once.
  std::string decide(Member& member) {
    GroupInfo& info = member.agreement->make(prng_bytes(8), prng_bytes(32));
    std::vector<BadProcess*> present;
    for (uint32_t machine = world_.plan.machines; machine < world_.plan.all(); ++machine) {
      BadProcess* const process = world_.processes[machine];
      if (!process->alive()) continue;
      present.push_back(process);
      info.nodes.push_back({"machine " + std::to_string(machine), {process->transport.address()}});
    }
    for (size_t i = 0; i < present.size(); ++i) {
      const BadProcess::Time time(*present[i]);
      const auto its = std::make_shared<GroupInfo>(GroupInfo::unpack(info.pack()));
      its->key = group_key(plan_.settings[0].secret, its->id);
      world_.parts.push_back(present[i]->join(its, uint32_t(info.workers + i)));
    }
    return member.agreement->decision();
  }

  void take_part(Member& member, const std::string& decision) {
    member.info = member.agreement->group_of(decision);
    member.part = member.process->join(member.info, member.rank);
    world_.parts.push_back(member.part);
  }

  void cannot_join(Epoch& epoch, Member& member, const std::string& why) {
    check_failure(why);
    if (epoch.not_joined && *epoch.not_joined != why)
      throw Error("ranks cannot join for different reasons: " + *epoch.not_joined + "; and " + why);
    epoch.not_joined = why;
    ++world_.not_joined;
    member.failed = member.leaves = true;
    leave(member);
  }

  void begin_next(Epoch& epoch, Member& member) {
    if (member.begun == plan_.sums.size() || member.leaves) return;
    const size_t number = member.begun++;
    member.process->after(plan_.sums[number].begins_us[member.machine],
                          [this, &epoch, &member, number] {
                            if (!member.leaves) begin(epoch, member, number);
                          });
  }

  void begin(Epoch& epoch, Member& member, size_t number) {
    const SumPlan& plan = plan_.sums[number];
    const Shape& shape = plan.shape;
    auto own = std::make_unique<Own>();
    own->given = plan.total({member.machine});
    own->taken = plan.in_place ? Bytes() : Bytes(own->given.size(), 0xA5);
    own->begun_us = world_.network.now();
    uint8_t* const to = plan.in_place ? own->given.data() : own->taken.data();
    const auto make = [from = own->given.data(), to, rank = member.rank](const Layout& layout) {
      return std::make_unique<HostTensor>(layout, from, to, rank);
    };
    member.sums[number] = std::move(own);
    const auto collective = std::make_shared<Collective>(
        number + 1, member.info->shape_of(shape.count, shape.dtype, shape.codec),
        member.info->workers, 1, make,
        [this, &epoch, &member, number](const std::string* failure, uint64_t) {
          end(epoch, member, number, failure);
        },
        false);
    member.part->start(collective);
    member.process->wake();
  }

  // Called from within the session, so everything that follows is deferred. An exception would be
  // the session's.
  void end(Epoch& epoch, Member& member, size_t number, const std::string* failure) {
    try {
      check_end(epoch, member, number, failure);
    } catch (const Error& why) {
      if (!world_.wrong) world_.wrong = why.what();
    }
    ++member.ended;
    ++(failure ? world_.failed : world_.right);
    member.failed |= failure != nullptr;
    if (!member.failed && member.ended < plan_.sums.size()) return begin_next(epoch, member);
    if (std::exchange(member.leaves, true)) return;
    member.process->after(world_.prng.below(2000), [this, &member] { leave(member); });
  }

  void check_end(Epoch& epoch, Member& member, size_t number, const std::string* failure) {
    const uint64_t took = world_.network.now() - member.sums[number]->begun_us;
    if (took > world_.plan.most_us(member.info->seats->levels()))
      throw Error("a sum has taken " + std::to_string(took) + " us to end");
    if (failure)
      check_failure(*failure);
    else
      check_right(epoch, member, number);
  }

  void check_right(Epoch& epoch, Member& member, size_t number) {
    const SumPlan& plan = plan_.sums[number];
    const Own& own = *member.sums[number];
    const Bytes& got = plan.in_place ? own.given : own.taken;
    const std::string who =
        "rank " + std::to_string(member.rank) + " of " + std::to_string(epoch.members.size());
    if (plan.shape.codec.lossy()) {
      std::optional<Bytes>& first = epoch.coded[number];
      if (!first) first = got;
      if (*first != got) throw Error(who + " has another sum " + std::to_string(number));
    } else if (got != plan.total(epoch.machines)) {
      throw Error(who + " has a wrong sum " + std::to_string(number));
    }
  }

  void check_failure(const std::string& why) const {
    if (!world_.plan.hopeless() && plan_.same) throw Error("failed for no reason: " + why);
    if (why.find("rank ") == std::string::npos && why.find("aggregator ") == std::string::npos)
      throw Error("a failure names nobody: " + why);
    if (world_.plan.only_memory() && plan_.same &&
        why.find("no memory is left") == std::string::npos)
      throw Error("a failure does not say that memory was refused: " + why);
  }

  void leave(Member& member) {
    if (member.part) member.process->groups.remove(member.part);
    member.part.reset();
    member.sums.clear();
    arrive(member.machine, member.failed);
  }

  BadWorld& world_;
  const GroupPlan& plan_;
  std::vector<std::unique_ptr<Epoch>> epochs_;
  std::set<uint32_t> expected_, arrived_;  // machines
  bool failed_ = true;                     // the group has to be formed
  bool over_ = false;
};

}  // namespace omnihvd::simulation
