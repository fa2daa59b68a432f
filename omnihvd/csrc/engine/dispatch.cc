#include "engine/dispatch.h"

#include <algorithm>
#include <utility>

#include "base/awake_clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/stats.h"

namespace omnihvd {
namespace {

constexpr auto kRefusalLogEvery = std::chrono::seconds(1);
constexpr size_t kGroupsRemembered = 1024;

}  // namespace

std::shared_ptr<GroupStream> Dispatch::join(std::shared_ptr<const GroupInfo> info, uint32_t self,
                                            uint32_t stream, Transport& transport,
                                            GroupStream::Failed failed) {
  try {
    groups_.push_back(
        std::make_shared<GroupStream>(info, self, stream, transport, std::move(failed)));
  } catch (...) {
    remember(info->id);  // the other ranks may still say good-bye
    throw;
  }
  return groups_.back();
}

void Dispatch::remove(const std::shared_ptr<GroupStream>& group) {
  groups_.erase(std::remove(groups_.begin(), groups_.end(), group), groups_.end());
  group->leave();
  remember(group->group());
}

void Dispatch::remember(uint64_t left) {
  left_.push_back(left);
  if (left_.size() > kGroupsRemembered) left_.pop_front();
}

bool Dispatch::busy() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->busy(); });
}

bool Dispatch::work() {
  bool worked = false;
  for (size_t i = 0; i < groups_.size(); ++i) worked |= groups_[i]->work();
  for (size_t i = groups_.size(); i-- > 0;)
    if (groups_[i]->deserted()) remove(std::shared_ptr<GroupStream>(groups_[i]));
  return worked;
}

void Dispatch::check_time() {
  const Clock::time_point now = Clock::now();
  const Clock::time_point before = std::exchange(checked_at_, now);
  const bool stopped = now - before > std::chrono::microseconds(AwakeClock::kLongestStep);
  const auto asleep = now - before - std::chrono::microseconds(AwakeClock::kOfAStop);
  for (const auto& group : groups_)
    if (stopped) group->leave_out(asleep, now);
  for (const auto& group : groups_) {
    group->check_gaps(now);
    group->check_time(now);
  }
}

void Dispatch::on_message(const uint8_t* data, size_t size) {
  try {
    const Header header = read_header(data, size);
    for (const auto& group : groups_)
      if (group->group() == header.group && group->stream() == header.stream)
        return group->on_message(header, data, size);
    // Members leave at different times: late messages for a group that we have left are normal.
    if (std::find(left_.begin(), left_.end(), header.group) != left_.end()) return;
    throw Error("a message for a group that this process is not in");
  } catch (const Error& why) {
    refuse(why.what());
  }
}

// A flood of such messages must not flood the log.
void Dispatch::refuse(const std::string& why) {
  stats().messages_refused += 1;
  const auto now = Clock::now();
  if (now - last_refusal_ < kRefusalLogEvery) return;
  last_refusal_ = now;
  log(LogLevel::warning, "refused a message: ", why);
}

}  // namespace omnihvd
