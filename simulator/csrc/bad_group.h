// One communicator of a simulated session. Its processes bootstrap, agree, sum, and leave. When it
// has failed, the surviving processes form it again, as in an elastic job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/agreement.h"
#include "simulator/csrc/bad_process.h"
#include "simulator/csrc/bad_session_plan.h"

namespace omnihvd::simulation {

// The state that all groups share.
struct BadWorld {
  const SessionPlan& plan;
  Dice& dice;
  BadNetwork& network;
  std::vector<BadProcess*> processes{};  // [machine]: the last process that began there
  uint64_t right = 0, failed = 0;        // sums
  uint64_t joined = 0, not_joined = 0;
  std::optional<std::string> wrong{};               // the first wrong end of a sum
  std::vector<std::weak_ptr<GroupStream>> parts{};  // that were made
};

class BadGroup {
 public:
  BadGroup(BadWorld& world, const GroupPlan& plan);
  ~BadGroup();

  // A machine's process has ended. begins_again: another one will begin there...
  void ended(uint32_t machine, bool begins_again);
  void began_again(uint32_t machine);  // ...and has.
  bool over() const { return over_; }

 private:
  struct Own;
  struct Member;
  struct Epoch;

  void arrive(uint32_t machine, bool failed);
  void go_on();
  void form(const std::vector<uint32_t>& machines);
  void give_up(Epoch& epoch, const std::string& why);
  void introduce(Epoch& epoch, Member& member);
  void say(Epoch& epoch, Member& member, const std::string& words);
  void hear(Epoch& epoch, Member& member, const std::vector<std::string>& words);
  std::string decide(Member& member);
  void take_part(Member& member, const std::string& decision);
  void cannot_join(Epoch& epoch, Member& member, const std::string& why);
  void begin_next(Epoch& epoch, Member& member);
  void begin(Epoch& epoch, Member& member, size_t number);
  void end(Epoch& epoch, Member& member, size_t number, const std::string* failure);
  void check_end(Epoch& epoch, Member& member, size_t number, const std::string* failure);
  void check_right(Epoch& epoch, Member& member, size_t number);
  void check_failure(const std::string& why) const;
  void leave(Member& member);

  BadWorld& world_;
  const GroupPlan& plan_;
  std::vector<std::unique_ptr<Epoch>> epochs_;
  std::set<uint32_t> expected_, arrived_;  // machines
  bool failed_ = true;                     // the group has to be formed
  bool over_ = false;
};

}  // namespace omnihvd::simulation
