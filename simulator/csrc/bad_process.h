// A process of a simulated session: the engine's own Dispatch and GroupStreams over a transport of
// the bad network. It wakes when there is something to do, and twice a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/dispatch.h"
#include "simulator/csrc/bad_network.h"
#include "simulator/csrc/bad_transport.h"
#include "simulator/csrc/prng.h"

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
  BadProcess(BadNetwork& network, Prng& prng, uint32_t on)
      : host(on), transport(network, on, [this] { wake(); }), network_(network), prng_(prng) {
    transport.set_handler(&groups);
    look_at_the_clock();
  }

  bool alive() const { return !network_.stopped(host); }

  void wake() {
    if (!std::exchange(awake_, true)) after(prng_.below(kSoon), [this] { work(); });
  }

  std::shared_ptr<GroupStream> join(std::shared_ptr<const GroupInfo> info, uint32_t self) {
    return groups.join(std::move(info), self, 0, transport, [](const std::string&) {});
  }

  // Calls `then` on this process after so long by its clock, if it is still alive.
  void after(uint64_t us, std::function<void()> then) {
    network_.at(network_.now() + us, host, [this, then = std::move(then)] {
      const Time time(*this);
      then();
    });
  }

  const uint32_t host;
  BadTransport transport;
  Dispatch groups;

 private:
  static constexpr uint64_t kSoon = 20, kCheckEvery = 500'000;  // us, as in engine/stream.cc

  // As the loop of engine/stream.cc.
  void work() {
    awake_ = false;
    bool moved = transport.progress();
    moved |= groups.work();
    if (moved) wake();
  }

  void look_at_the_clock() {
    after(kCheckEvery, [this] {
      if (groups.busy()) groups.check_time();
      look_at_the_clock();
    });
  }

  BadNetwork& network_;
  Prng& prng_;
  bool awake_ = false;
};

}  // namespace omnihvd::simulation
