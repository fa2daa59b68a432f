#include "algorithms/shared_memory/peers.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/stats.h"
#include "engine/while_waiting.h"

namespace omnihvd {
namespace {

constexpr auto kLookAfter = std::chrono::milliseconds(100);  // before looking who has ended

}  // namespace

std::string Peers::name_of(int rank) const { return rank_name(uint64_t(number_of(rank)), host_); }

void Peers::wait(const std::function<bool()>& open,
                 const std::function<void(std::chrono::milliseconds)>& sleep,
                 const std::function<Progress(int rank)>& progress, const std::string& sum) {
  timer_.begin_wait();
  WhileWaiting* const waiting = WhileWaiting::here();
  for (auto looked = Clock::now(); !open();) {
    sleep(waiting ? std::min(waiting->every(), kLookAfter) : kLookAfter);
    if (waiting) waiting->work();
    const auto now = Clock::now();
    if (open() || now - looked < kLookAfter) continue;
    looked = now;
    look(progress, sum);
  }
}

void Peers::look(const std::function<Progress(int rank)>& progress, const std::string& sum) {
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
  if (const std::string why = timer_.overdue(sum, late); !why.empty()) fail(why);
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
  fail(differ_text(name_of(rank), theirs, name_of(rank_), mine));
}

void Peers::throw_if_failed() const {
  if (failure_.failed.load() < 2) return;
  stats().failures += 1;
  throw Error(failure_.why);
}

}  // namespace omnihvd
