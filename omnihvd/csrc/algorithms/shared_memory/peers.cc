#include "algorithms/shared_memory/peers.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "engine/stats.h"
#include "engine/while_waiting.h"

namespace omnihvd {
namespace {

constexpr auto kLookAfter = std::chrono::milliseconds(100);  // before looking who has ended

}  // namespace

std::string Peers::name_of(int rank) const {
  return "rank " + std::to_string(number_of(rank)) + " (" + host_ + ")";
}

void Peers::wait(const std::function<bool()>& open,
                 const std::function<void(std::chrono::milliseconds)>& sleep,
                 const std::function<Progress(int rank)>& progress, const std::string& sum) {
  bool warned = false;
  if (!sum_) sum_.emplace();
  const double begun = sum_->seconds();
  WhileWaiting* const waiting = WhileWaiting::here();
  for (auto looked = Clock::now(); !open();) {
    sleep(waiting ? std::min(waiting->every(), kLookAfter) : kLookAfter);
    if (waiting) waiting->work();
    const auto now = Clock::now();
    if (open() || now - looked < kLookAfter) continue;
    looked = now;
    look(progress, sum, begun, &warned);
  }
}

void Peers::look(const std::function<Progress(int rank)>& progress, const std::string& sum,
                 double wait_begun, bool* warned) {
  throw_if_failed();
  std::string late;
  for (int rank = 0; rank < ranks_; ++rank) {
    // Read this first: a rank that ended did everything before that.
    const bool ended = rank != rank_ && segment_.has_ended(rank);
    const Progress made = progress(rank);
    if (made == Progress::come) continue;
    if (made == Progress::left)
      fail(name_of(rank) + " left the job while the others wait for its part of a sum");
    if (ended) fail(name_of(rank) + " has ended");
    late += (late.empty() ? "" : ", ") + name_of(rank);
  }
  const double seconds = sum_->seconds();
  std::ostringstream what;
  what << "an allreduce of " << sum;
  if (timeout_s_ > 0 && seconds > timeout_s_) {
    what << " did not end within " << timeout_s_ << " s (OMNIHVD_TIMEOUT); waiting for " << late;
    fail(what.str());
  }
  if (*warned || warning_s_ <= 0 || seconds - wait_begun < warning_s_) return;
  *warned = true;
  log(LogLevel::warning, what.str(), " has made no progress for ", warning_s_, " s; waiting for ",
      late);
}

void Peers::abort(const std::string& why) noexcept {
  uint32_t expected = 0;
  if (failure_.failed.compare_exchange_strong(expected, 1)) {
    std::strncpy(failure_.why, why.c_str(), sizeof failure_.why - 1);
    failure_.failed = 2;
  }
}

void Peers::fail(const std::string& why) {
  abort(why);
  stats().failures += 1;
  throw Error(why);
}

void Peers::fail_as_different(int rank, const std::string& theirs, const std::string& mine) {
  fail("the ranks disagree about an allreduce: " + name_of(rank) + " sums " + theirs + ", " +
       name_of(rank_) + " sums " + mine);
}

void Peers::throw_if_failed() const {
  if (failure_.failed.load() < 2) return;
  stats().failures += 1;
  throw Error(failure_.why);
}

}  // namespace omnihvd
