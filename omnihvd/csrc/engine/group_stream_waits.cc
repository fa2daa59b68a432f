// GroupStream: tracks who is waited for and for how long, and reports it.
//
// A process knows the ranks that its own aggregators wait for, the processes that sum for child
// groups, and the aggregators that it waits for itself. So the culprit of a stall knows itself
// best, if it is alive. Next best know its group's aggregators, then those on each level above. If
// an aggregator hangs, the processes that contributed to it know. The process that knows best is
// the first to end an overdue collective, since all others are then told its words.
#include <algorithm>
#include <set>

#include "base/log.h"
#include "engine/group_tasks.h"

namespace omnihvd {
namespace {

// How much later a process acts for each level that it knows less; exceeds the time between two
// checks.
constexpr auto kKnowsLess = std::chrono::seconds(1);

constexpr const char* kOrWaiting = ": stopped, out of reach, or waiting as well";

}  // namespace

// The state of one collective, as far as this process knows.
struct GroupStream::Awaited {
  std::string text;       // "; waiting for ..."
  Clock::duration grace;  // for those that know better to speak first
  bool ourselves;         // the other ranks wait for this one
};

GroupStream::Awaited GroupStream::awaited(uint64_t sequence) const {
  for (uint32_t level = 1; level <= info_->seats->levels(); ++level) {
    const std::set<uint32_t> nodes = members_awaited(sequence, level);
    if (nodes.empty()) continue;
    if (level > 1)
      return {"; waiting for what " + names_of(nodes) + " sums for a group of ranks" + kOrWaiting,
              level * kKnowsLess, false};
    const bool ourselves = nodes.count(self_) > 0 && router_.workers().count(sequence) == 0;
    return {"; waiting for " + names_of(nodes, ourselves),
            ourselves ? Clock::duration() : kKnowsLess, ourselves};
  }
  std::set<uint32_t> nodes = aggregators_awaited(sequence);
  nodes.erase(self_);
  const Clock::duration grace = (info_->seats->levels() + 1) * kKnowsLess;
  if (nodes.empty()) {
    // Nodes that have not taken our messages; the next round may need the memory of these.
    for (const auto& out : under_way_) nodes.insert(out->node);
    if (nodes.empty())
      return {"; " + info_->name_of(self_) + " itself has not gone on: it was stopped", grace,
              false};
    return {"; what was sent to " + names_of(nodes) + " does not come there" + kOrWaiting, grace,
            false};
  }
  return {"; waiting for the results of " + names_of(nodes) + kOrWaiting, grace, false};
}

// Nodes that have not contributed to our aggregators on this level.
std::set<uint32_t> GroupStream::members_awaited(uint64_t sequence, uint32_t level) const {
  std::set<uint32_t> nodes;
  const auto& parts = router_.aggregators();
  const auto end = parts.lower_bound({sequence, Seat{level + 1, 0}});
  for (auto at = parts.lower_bound({sequence, Seat{level, 0}}); at != end; ++at)
    for (const uint32_t member : at->second->aggregator.awaited())
      nodes.insert(at->second->node_of(member));
  return nodes;
}

// Aggregators that owe a result to our worker or to our aggregators.
std::set<uint32_t> GroupStream::aggregators_awaited(uint64_t sequence) const {
  std::set<uint32_t> nodes;
  const auto& workers = router_.workers();
  if (const auto ours = workers.find(sequence); ours != workers.end())
    for (const uint32_t aggregator : ours->second->worker.awaited())
      nodes.insert(
          info_->seats->host({1, ours->second->layout->shape().share_of(aggregator)}, self_));
  const auto& parts = router_.aggregators();
  const auto end = parts.lower_bound({sequence + 1, Seat{0, 0}});
  for (auto at = parts.lower_bound({sequence, Seat{0, 0}}); at != end; ++at)
    if (at->second->is_below()) nodes.insert(info_->seats->host(at->second->above(), self_));
  return nodes;
}

// with_doing: adds what this rank does meanwhile.
std::string GroupStream::names_of(const std::set<uint32_t>& nodes, bool with_doing) const {
  std::string names;
  for (const uint32_t node : nodes) {
    names += (names.empty() ? "" : ", ") + info_->name_of(node);
    if (node != self_ || !with_doing) continue;
    const std::lock_guard<std::mutex> lock(elsewhere_mutex_);
    names += ", " + (elsewhere_.empty() ? "which has not begun it" : elsewhere_);
  }
  return names;
}

void GroupStream::set_elsewhere(std::string what) {
  const std::lock_guard<std::mutex> lock(elsewhere_mutex_);
  elsewhere_ = std::move(what);
}

void GroupStream::leave_out(Clock::duration asleep, Clock::time_point now) {
  const auto shift = [&](auto& task) {
    task.begun = std::min(task.begun + asleep, now);
    task.touched = std::min(task.touched + asleep, now);
  };
  for (const auto& [sequence, part] : router_.workers()) shift(task_of(*part));
  for (const auto& [place, part] : router_.aggregators()) shift(task_of(*part));
  for (const Peer& peer : peers_)
    if (peer.connected) peer.in->leave_out(now);
}

void GroupStream::check_time(Clock::time_point now) {
  for (const auto& [sequence, part] : router_.workers())
    if (fail_if_overdue(sequence, part->layout->shape(), now - task_of(*part).begun)) return;
  for (const auto& [place, part] : router_.aggregators())
    if (fail_if_overdue(place.first, part->layout.shape(), now - task_of(*part).begun)) return;
  warn_of_stalls(now);
}

bool GroupStream::fail_if_overdue(uint64_t sequence, const Shape& shape, Clock::duration waited) {
  const std::chrono::duration<double> limit(timeout_s_.load());
  if (limit.count() <= 0 || waited <= limit) return false;
  const Awaited awaits = awaited(sequence);
  if (waited <= limit + awaits.grace) return false;
  std::ostringstream reason;
  reason << collective_text(shape) << " did not end within " << limit.count()
         << " s (OMNIHVD_TIMEOUT)" << awaits.text;
  fail(reason.str(), true);
  return true;
}

void GroupStream::warn_of_stalls(Clock::time_point now) {
  const double limit = info_->settings.stall_warning_s;
  if (limit <= 0) return;
  const auto warn = [&](uint64_t sequence, const Shape& shape, Clock::time_point& touched,
                        bool only_if_ourselves) {
    if (std::chrono::duration<double>(now - touched).count() < limit) return false;
    const Awaited awaits = awaited(sequence);
    if (only_if_ourselves && !awaits.ourselves) return false;
    touched = now;
    log(LogLevel::warning, collective_text(shape), " has made no progress for ", limit, " s",
        awaits.text);
    return true;
  };
  for (const auto& [sequence, part] : router_.workers())
    warn(sequence, part->layout->shape(), task_of(*part).touched, false);
  const auto& parts = router_.aggregators();
  for (auto at = parts.begin(); at != parts.end();) {
    const auto& [place, part] = *at++;
    if (!warn(place.first, part->layout.shape(), task_of(*part).touched, self_ < info_->workers))
      continue;
    // One warning covers everything that this process aggregates for the collective.
    for (; at != parts.end() && at->first.first == place.first; ++at)
      task_of(*at->second).touched = now;
  }
}

void GroupStream::on_leave(uint32_t node) {
  peers_[node].left = true;
  const auto fail_if_awaited = [&](const std::set<uint32_t>& nodes, const char* how,
                                   const std::string& sum) {
    if (!failure_ && nodes.count(node) > 0) fail(info_->name_of(node) + how + sum, true);
  };
  // Copies, since a failure erases entries.
  const auto workers = router_.workers();
  const auto aggregators = router_.aggregators();
  for (const auto& [place, part] : aggregators)
    fail_if_awaited(members_awaited(place.first, place.second.level),
                    " left the job while the others wait for its part of ",
                    collective_text(part->layout.shape()));
  for (const auto& [sequence, part] : workers)
    fail_if_awaited(aggregators_awaited(sequence),
                    " left the job while the ranks wait for its part of the sum of ",
                    shape_text(part->layout->shape()));
}

}  // namespace omnihvd
