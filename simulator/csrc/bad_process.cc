#include "simulator/csrc/bad_process.h"

#include <utility>

namespace omnihvd::simulation {
namespace {

constexpr uint64_t kSoon = 20, kCheckEvery = 500'000;  // microseconds, as in engine/stream.cc

}  // namespace

BadProcess::BadProcess(BadNetwork& network, Dice& dice, uint32_t on)
    : host(on), transport(network, on, [this] { wake(); }), network_(network), dice_(dice) {
  transport.set_handler(&groups);
  look_at_the_clock();
}

void BadProcess::after(uint64_t us, std::function<void()> then) {
  network_.at(network_.now() + us, host, [this, then = std::move(then)] {
    const Time time(*this);
    then();
  });
}

void BadProcess::wake() {
  if (std::exchange(awake_, true)) return;
  after(dice_.below(kSoon), [this] { work(); });
}

// As the loop of engine/stream.cc.
void BadProcess::work() {
  awake_ = false;
  bool moved = transport.progress();
  moved |= groups.work();
  if (moved) wake();
}

void BadProcess::look_at_the_clock() {
  after(kCheckEvery, [this] {
    if (groups.busy()) groups.check_time();
    look_at_the_clock();
  });
}

}  // namespace omnihvd::simulation
