#include "engine/stream.h"

#include <unistd.h>

#include <future>
#include <utility>

#include "base/log.h"

namespace omnihvd {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(500);
constexpr auto kAfterFailure = std::chrono::milliseconds(10);  // if it lasts: no busy loop
constexpr auto kLogEvery = std::chrono::seconds(1);

}  // namespace

Stream::Stream(std::unique_ptr<Transport> transport, uint32_t spin_us)
    : transport_(std::move(transport)),
      address_(transport_->address()),
      description_(transport_->describe()),
      polling_(std::chrono::microseconds(spin_us)),
      last_check_(Clock::now()) {
  transport_->set_handler(&groups_);
  thread_ = std::thread([this] { loop(); });
}

Stream::~Stream() {
  stop_ = true;
  transport_->wake();
  thread_.join();
}

void Stream::post(std::function<void()> command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  transport_->wake();
}

void Stream::run(std::function<void()> command) {
  std::packaged_task<void()> task(std::move(command));
  auto done = task.get_future();
  post([&task] { task(); });
  done.get();
}

void Stream::loop() {
  while (true) {
    bool moved = guarded([this] { return transport_->progress(); });
    moved |= run_commands();
    moved |= guarded([this] { return groups_.work(); });
    if (stop_) break;
    guarded([&] { return end_turn(moved); });
  }
  guarded([this] { return groups_.remove_all(), true; });
}

bool Stream::end_turn(bool moved) {
  const auto now = Clock::now();
  if (now - last_check_ > kCheckEvery) {
    last_check_ = now;
    groups_.check_time();
  }
  if (moved) {
    polling_.on_work(now);
    // If ranks share cores, a rank woken by our messages must not wait for the end of a time slice
    // of milliseconds.
    std::this_thread::yield();
  } else if (polling_.may_sleep(now)) {
    transport_->wait(groups_.busy() ? 500 : -1);
  }
  return moved;
}

// The barrier for exceptions: if a step throws, the groups of this thread fail. The process and the
// thread go on, so that callers learn of it.
template <typename Step>
bool Stream::guarded(Step step) {
  std::string why = "an unknown exception";
  try {
    return step();
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
  }
  why = "the progress thread of process " + std::to_string(getpid()) + " on " + host_name() +
        " has failed: " + why;
  if (Clock::now() - last_failure_ > kLogEvery) log(LogLevel::error, why);
  last_failure_ = Clock::now();
  groups_.fail_all(why);
  std::this_thread::sleep_for(kAfterFailure);
  return false;
}

bool Stream::run_commands() {
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& command : commands) guarded([&] { return command(), true; });
  return !commands.empty();
}

}  // namespace omnihvd
