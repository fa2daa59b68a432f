#include "session/stream.h"

#include <algorithm>
#include <future>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace omnihvd {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(500);
constexpr auto kRefusalLogEvery = std::chrono::seconds(1);
constexpr size_t kGroupsRemembered = 1024;

}  // namespace

Stream::Stream(std::unique_ptr<Transport> transport, uint32_t spin_us)
    : transport_(std::move(transport)),
      address_(transport_->address()),
      description_(transport_->describe()),
      spin_(std::chrono::microseconds(spin_us)),
      last_check_(Clock::now()) {
  transport_->set_handler(this);
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

void Stream::add(std::shared_ptr<GroupStream> group) { groups_.push_back(std::move(group)); }

void Stream::remove(const std::shared_ptr<GroupStream>& group) {
  groups_.erase(std::remove(groups_.begin(), groups_.end(), group), groups_.end());
  group->leave();
  left_.push_back(group->group());
  if (left_.size() > kGroupsRemembered) left_.pop_front();
}

void Stream::loop() {
  Clock::time_point last_moved = Clock::now();
  while (true) {
    bool moved = transport_->progress();
    moved |= run_commands();
    for (size_t i = 0; i < groups_.size(); ++i) moved |= groups_[i]->work();
    for (size_t i = groups_.size(); i-- > 0;)
      if (groups_[i]->deserted()) remove(std::shared_ptr<GroupStream>(groups_[i]));
    if (stop_) {
      while (!groups_.empty()) remove(std::shared_ptr<GroupStream>(groups_.back()));
      return;
    }
    const auto now = Clock::now();
    if (now - last_check_ > kCheckEvery) check_time();
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
  const bool busy =
      std::any_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->busy(); });
  transport_->wait(busy ? 500 : -1);
}

void Stream::check_time() {
  last_check_ = Clock::now();
  for (const auto& group : groups_) {
    group->check_gaps(last_check_);
    group->check_time(last_check_);
  }
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

void Stream::on_message(const uint8_t* data, size_t size) {
  try {
    const Header header = read_header(data, size);
    for (const auto& group : groups_)
      if (group->group() == header.group && group->stream() == header.stream)
        return group->on_message(header, data, size);
    // Members leave in their own time: the last words of those behind us are nothing strange.
    if (std::find(left_.begin(), left_.end(), header.group) != left_.end()) return;
    throw Error("a message for a group that this process is not in");
  } catch (const Error& why) {
    refuse(why.what());
  }
}

// Whoever floods us shall not flood the log.
void Stream::refuse(const std::string& why) {
  stats().messages_refused += 1;
  const auto now = Clock::now();
  if (now - last_refusal_ < kRefusalLogEvery) return;
  last_refusal_ = now;
  log(LogLevel::warning, "refused a message: ", why);
}

void Stream::on_peer_failed(PeerId peer, const std::string& reason) {
  has_lost_a_peer_ = true;
  for (const auto& group : groups_) group->on_peer_failed(peer, reason);  // they share it
}

}  // namespace omnihvd
