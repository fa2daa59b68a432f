#include "engine/while_waiting.h"

#include <algorithm>
#include <utility>

namespace omnihvd {
namespace {
thread_local WhileWaiting* of_this_thread = nullptr;
}

WhileWaiting::WhileWaiting(std::function<void()> work, Milliseconds every)
    : work_(std::move(work)), every_(every), before_(of_this_thread) {
  if (work_) of_this_thread = this;
}

WhileWaiting::~WhileWaiting() { of_this_thread = before_; }

WhileWaiting* WhileWaiting::here() { return of_this_thread; }

WhileWaiting::Milliseconds WhileWaiting::every() const {
  return before_ ? std::min(every_, before_->every()) : every_;
}

void WhileWaiting::work() {
  if (before_) before_->work();
  const auto now = std::chrono::steady_clock::now();
  if (now - worked_ < every_) return;
  worked_ = now;
  work_();
}

}  // namespace omnihvd
