#include "session/stream.h"

#include <future>
#include <utility>

namespace omnihvd {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(500);

}  // namespace

Stream::Stream(std::unique_ptr<Transport> transport, uint32_t spin_us)
    : transport_(std::move(transport)),
      address_(transport_->address()),
      description_(transport_->describe()),
      spin_(std::chrono::microseconds(spin_us)),
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
  Clock::time_point last_moved = Clock::now();
  while (true) {
    bool moved = transport_->progress();
    moved |= run_commands();
    moved |= groups_.work();
    if (stop_) return groups_.remove_all();
    const auto now = Clock::now();
    if (now - last_check_ > kCheckEvery) {
      last_check_ = now;
      groups_.check_time();
    }
    if (moved) {
      last_moved = now;
      // Where ranks share cores, those whom our messages woke shall not wait until a slice of
      // milliseconds ends.
      std::this_thread::yield();
    } else {
      idle(last_moved);
    }
  }
}

// Polls for a moment, then sleeps: several ranks share a core.
void Stream::idle(Clock::time_point last_moved) {
  if (Clock::now() - last_moved < spin_) return;
  transport_->wait(groups_.busy() ? 500 : -1);
}

bool Stream::run_commands() {
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
  return !commands.empty();
}

}  // namespace omnihvd
