// A process of a simulated session: the engine's own Dispatch and GroupStreams over a transport of
// the bad network. It wakes when there is something to do, and twice a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "engine/dispatch.h"
#include "simulator/csrc/bad_network.h"
#include "simulator/csrc/bad_transport.h"
#include "simulator/csrc/dice.h"

namespace omnihvd::simulation {

class BadProcess {
 public:
  // While it lives, clocks show the time of the process's machine.
  class Time {
   public:
    explicit Time(const BadProcess& process)
        : stopped_(kBegin + process.network_.clock(process.host)) {}

   private:
    static constexpr uint64_t kBegin = 1'000'000'000;
    const SessionClock::Stopped stopped_;
  };

  // on: its host in the network.
  BadProcess(BadNetwork& network, Dice& dice, uint32_t on);

  bool alive() const { return !network_.stopped(host); }
  void wake();
  std::shared_ptr<GroupStream> join(std::shared_ptr<const GroupInfo> info, uint32_t self) {
    return groups.join(std::move(info), self, 0, transport, [](const std::string&) {});
  }
  // Calls `then` on this process after so long by its clock, if it is still alive.
  void after(uint64_t us, std::function<void()> then);

  const uint32_t host;
  BadTransport transport;
  Dispatch groups;

 private:
  void work();
  void look_at_the_clock();

  BadNetwork& network_;
  Dice& dice_;
  bool awake_ = false;
};

}  // namespace omnihvd::simulation
