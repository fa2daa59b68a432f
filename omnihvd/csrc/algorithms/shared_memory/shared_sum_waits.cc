// How ranks wait for each other, and how they end a sum that cannot continue.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "algorithms/shared_memory/shared_sum.h"
#include "base/awake_clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/stats.h"
#include "engine/while_waiting.h"

namespace omnihvd {
namespace {

constexpr auto kLookAfter = std::chrono::milliseconds(100);  // before looking who has ended

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

std::string SharedSum::name_of(int rank) const {
  return "rank " + std::to_string(number_of(rank)) + " (" + host_ + ")";
}

void SharedSum::announce(Step step, uint64_t chunk) {
  control_.gates[step].arrive(uint32_t(ranks_));
  of(rank_).steps = 2 * chunk + step + 1;
}

void SharedSum::wait(Step step, uint64_t chunk) {
  Gate& gate = control_.gates[step];
  const uint32_t times = uint32_t(chunk + 1);
  if (gate.open(times)) return;
  const auto begun = Clock::now();
  while (spin_.count() > 0 && Clock::now() - begun < spin_) {
    if (gate.open(times)) return;
    pause();
  }
  bool warned = false;
  AwakeTimer awake;
  WhileWaiting* const waiting = WhileWaiting::here();
  for (auto looked = begun; !gate.open(times);) {
    gate.wait(times, waiting ? std::min(waiting->every(), kLookAfter) : kLookAfter);
    if (waiting) waiting->work();
    const auto now = Clock::now();
    if (gate.open(times) || now - looked < kLookAfter) continue;
    looked = now;
    look_after_others(step, chunk, awake.seconds(), &warned);
  }
}

// Checks, while this rank waits, whether another rank has failed, left, ended, or is late.
void SharedSum::look_after_others(Step step, uint64_t chunk, double seconds, bool* warned) {
  throw_if_failed();
  std::string late;
  for (int rank = 0; rank < ranks_; ++rank) {
    // Read this before the steps: a rank that left did everything before that.
    const bool left = of(rank).left != 0, ended = rank != rank_ && segment_->has_ended(rank);
    if (of(rank).steps > 2 * chunk + step) continue;
    if (left) fail(name_of(rank) + " left the job while the others wait for its part of a sum");
    if (ended) fail(name_of(rank) + " has ended");
    late += (late.empty() ? "" : ", ") + name_of(rank);
  }
  std::ostringstream what;
  what << "an allreduce of " << sum_text(of(rank_).count, DType(of(rank_).dtype), {});
  if (timeout_s_ > 0 && seconds > timeout_s_) {
    what << " did not end within " << timeout_s_ << " s (OMNIHVD_TIMEOUT); waiting for " << late;
    fail(what.str());
  }
  if (*warned || settings_.stall_warning_s <= 0 || seconds < settings_.stall_warning_s) return;
  *warned = true;
  log(LogLevel::warning, what.str(), " has made no progress for ", settings_.stall_warning_s,
      " s; waiting for ", late);
}

void SharedSum::check_same() {
  const SharedRank& mine = of(rank_);
  for (int rank = 0; rank < ranks_; ++rank) {
    const SharedRank& other = of(rank);
    if (other.count == mine.count && other.dtype == mine.dtype && other.codec == mine.codec)
      continue;
    fail("the ranks disagree about an allreduce: " + name_of(rank) + " sums " +
         sum_text(other.count, DType(other.dtype), other.codec) + ", " + name_of(rank_) + " sums " +
         sum_text(mine.count, DType(mine.dtype), mine.codec) +
         disagreement(other.codec, mine.codec));
  }
}

void SharedSum::abort(const std::string& why) noexcept {
  uint32_t expected = 0;
  if (control_.failed.compare_exchange_strong(expected, 1)) {
    std::strncpy(control_.why, why.c_str(), sizeof control_.why - 1);
    control_.failed = 2;
  }
  for (Gate& gate : control_.gates) gate.wake();
}

void SharedSum::fail(const std::string& why) {
  abort(why);
  stats().failures += 1;
  throw Error(why);
}

void SharedSum::throw_if_failed() const {
  if (control_.failed.load() < 2) return;
  stats().failures += 1;
  throw Error(control_.why);
}

}  // namespace omnihvd
