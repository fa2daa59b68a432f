// GroupStream: who is waited for, for how long, and what people are told of it.
//
// A process knows the ranks for which its own aggregator waits, and the aggregators for whose
// results its own worker waits. So the culprit of a stall is known best to itself, if it is alive;
// then to the aggregators; and of an aggregator that hangs its workers know. Whoever knows best is
// the first to end what takes too long, since the others are told its words.
#include <algorithm>

#include "base/log.h"
#include "session/group_tasks.h"

namespace omnihvd {
namespace {

// By which those who know less come later; more than the time between two checks.
constexpr auto kKnowsRanks = std::chrono::seconds(1);
constexpr auto kKnowsAggregators = std::chrono::seconds(2);

bool contains(const std::vector<uint32_t>& list, uint32_t number) {
  return std::find(list.begin(), list.end(), number) != list.end();
}

}  // namespace

// Of one collective, as far as this process knows.
struct GroupStream::Awaited {
  std::string text;       // "; waiting for ..."
  Clock::duration grace;  // for those who know better to speak first
  bool ourselves;         // the other ranks wait for this one
};

GroupStream::Awaited GroupStream::awaited(uint64_t sequence) const {
  const auto ours = workers_.find(sequence);
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  bool ourselves = false;
  if (const auto found = aggregators_.find(sequence); found != aggregators_.end())
    for (uint32_t worker : found->second->aggregator.awaited()) {
      if (worker == self_ && ours == workers_.end()) {
        const std::lock_guard<std::mutex> lock(elsewhere_mutex_);
        ourselves = true;
        add(info_->name_of(worker) + ", " +
            (elsewhere_.empty() ? "which has not begun it" : elsewhere_));
      } else {
        add(info_->name_of(worker));
      }
    }
  if (!names.empty())
    return {"; waiting for " + names, ourselves ? Clock::duration() : kKnowsRanks, ourselves};
  if (ours != workers_.end())
    for (uint32_t aggregator : ours->second->worker.awaited())
      if (own_aggregator_ != aggregator) add(info_->name_of(info_->aggregator_node(aggregator)));
  if (names.empty()) return {"", kKnowsAggregators, false};
  return {"; waiting for the results of " + names + ": stopped, out of reach, or waiting as well",
          kKnowsAggregators, false};
}

void GroupStream::set_elsewhere(std::string what) {
  const std::lock_guard<std::mutex> lock(elsewhere_mutex_);
  elsewhere_ = std::move(what);
}

void GroupStream::check_time(Clock::time_point now) {
  for (const auto& [sequence, task] : workers_) {
    const Collective& collective = *task->collective;
    if (fail_if_overdue(sequence, collective.layout.shape(), now - collective.begun)) return;
  }
  for (const auto& [sequence, task] : aggregators_)
    if (fail_if_overdue(sequence, task->layout.shape(), now - task->begun)) return;
  warn_of_stalls(now);
}

bool GroupStream::fail_if_overdue(uint64_t sequence, const Shape& shape, Clock::duration waited) {
  const std::chrono::duration<double> limit(info_->settings.timeout_s);
  if (limit.count() <= 0 || waited <= limit) return false;
  const Awaited awaits = awaited(sequence);
  if (waited <= limit + awaits.grace) return false;
  std::ostringstream reason;
  reason << "an allreduce of " << shape_text(shape) << " did not end within " << limit.count()
         << " s (OMNIHVD_TIMEOUT)" << awaits.text;
  fail(reason.str(), true);
  return true;
}

void GroupStream::warn_of_stalls(Clock::time_point now) {
  const double limit = info_->settings.stall_warning_s;
  if (limit <= 0) return;
  const auto warn = [&](uint64_t sequence, const Shape& shape, Clock::time_point& touched,
                        bool only_if_ourselves) {
    if (std::chrono::duration<double>(now - touched).count() < limit) return;
    const Awaited awaits = awaited(sequence);
    if (only_if_ourselves && !awaits.ourselves) return;
    touched = now;
    log(LogLevel::warning, "an allreduce of ", shape_text(shape), " has made no progress for ",
        limit, " s", awaits.text);
  };
  for (auto& [sequence, task] : workers_)
    warn(sequence, task->collective->layout.shape(), task->touched, false);
  for (auto& [sequence, task] : aggregators_)
    warn(sequence, task->layout.shape(), task->touched, self_ < info_->workers);
}

void GroupStream::on_leave(uint32_t node) {
  peers_[node].left = true;
  for (const auto& [sequence, task] : aggregators_)
    if (contains(task->aggregator.awaited(), node))
      return fail(info_->name_of(node) +
                      " left the job while the others wait for its part of an "
                      "allreduce of " +
                      shape_text(task->layout.shape()),
                  true);
  for (const auto& [sequence, task] : workers_)
    for (uint32_t aggregator : task->worker.awaited())
      if (info_->aggregator_node(aggregator) == node)
        return fail(info_->name_of(node) +
                        " left the job while the ranks wait for its part of the "
                        "sum of " +
                        shape_text(task->collective->layout.shape()),
                    true);
}

}  // namespace omnihvd
