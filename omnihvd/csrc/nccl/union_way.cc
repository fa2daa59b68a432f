#include "nccl/union_way.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "engine/stats.h"

namespace omnihvd {
namespace {

constexpr size_t kChanges = 16;  // of a proposal
constexpr double kAlert_s = 0.0001, kBusy_s = 0.002, kIdle_s = 0.2;
constexpr uint32_t kAlert = 1000;     // pauses
constexpr double kPatience_s = 5;     // to wait for interrupted sums
constexpr int64_t kYes = 1, kNo = 2;  // votes

// The words of each rank in a round. Rank 0's proposal follows those of all ranks.
enum Word : size_t { kCalls, kAsked, kVote, kHasFailed, kWords };
constexpr size_t kProposalWords = 2 + 3 * kChanges;

}  // namespace

UnionWay::UnionWay(const Settings& agreed, int ranks, int rank, const KernelTable& kernels,
                   std::shared_ptr<NcclGrid> levels, Failed failed)
    : settings_(agreed),
      ranks_(ranks),
      rank_(rank),
      failed_(std::move(failed)),
      steps_(agreed, ranks, rank, kernels, std::move(levels)),
      plans_(agreed.block_size, agreed.gpu == Way::unite, agreed.hierarchy == Hierarchy::on),
      chooser_(agreed.gpu, agreed.hierarchy) {}

void UnionWay::begin(std::shared_ptr<Group> group) {
  group_ = std::move(group);
  group_->set_uncounted();
  over_ = false;
  thread_ = std::thread([this] { serve(); });
}

// --- on the calling thread

UnionCall UnionWay::next(const NcclReduction& r, DType dtype) {
  std::vector<Stopwatch::Time> times;  // a CUDA call may wait for the device, which may wait for us
  if (rank_ == 0)
    while (const auto time = stopwatch_.take()) times.push_back(*time);
  std::unique_lock<std::mutex> lock(mutex_);
  for (const auto& [timed, seconds] : times)
    chooser_.took(timed.sum,
                  timed.capacity == 0 ? UnionChooser::kOriginal
                  : timed.two_levels  ? UnionChooser::kTwoLevels
                                      : UnionChooser::kOneLevel,
                  seconds);
  std::optional<UnionCall> call;
  changed_.wait(lock,
                [&] { return interrupted_ || (call = plans_.next(r.count, dtype)) || over_; });
  if (interrupted_) throw Error("a sum on this communicator has failed");
  // Some ranks may have counted the votes and made the call.
  if (!call)
    throw Error("whether a plan holds is not known, as the ranks lost touch: " + why_over_);
  if (over_) read_seen();  // while the thread lives, it does this
  if (call->look) {
    const uint64_t block = settings_.block_size;
    issued_.push_back({*call, r.count * size_of(dtype), (r.count + block - 1) / block});
    changed_.notify_all();
  }
  return *call;
}

// --- the thread

void UnionWay::serve() {
  std::string why = "this rank's thread has ended";
  try {
    while (round()) {
    }
  } catch (const std::exception& error) {  // a rank has left or died: NCCL reports it
    why = error.what();
    log(LogLevel::debug, "the ranks of a communicator do not talk any more: ", why);
  }
  if (held_) answer();
  steps_.rest().alone = 1;
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  why_over_ = why;
  changed_.notify_all();
}

// Waits until there is something to say, but not for ever: the other ranks may have something to
// say.
void UnionWay::pause(std::unique_lock<std::mutex>& lock) {
  const uint64_t calls = plans_.calls();
  const auto urgent = [&] { return quit_ || interrupted_ || voting_ || held_ || is_asked(); };
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // The device cannot wake this thread: poll while it may have a question.
  if (alert_ > 0) --alert_, idle_s_ = kAlert_s;
  bool busy = false;
  const auto step_s = [&] {  // a call may begin meanwhile
    busy = busy || !issued_.empty();
    return busy ? std::min(kBusy_s, idle_s_) : idle_s_;
  };
  for (double step = step_s(); !urgent() && waited() < idle_s_; step = step_s())
    changed_.wait_for(lock, std::chrono::duration<double>(step));
  idle_s_ = busy || plans_.calls() != calls ? kBusy_s : std::min(kIdle_s, idle_s_ * 2 + kBusy_s);
}

bool UnionWay::is_asked() const { return steps_.rest().asked != summed_; }

// Makes one round with the other ranks. Returns false if it was the last. Throws Error if the other
// ranks are gone.
bool UnionWay::round() {
  std::vector<int64_t> words(size_t(ranks_) * kWords + kProposalWords);
  bool last = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    pause(lock);
    read_seen();
    if (quit_) return false;
    last = interrupted_;
    write_state(words);
  }
  group_->allreduce(words.data(), words.data(), words.size(), DType::i64);
  if (held_) answer();
  if (last) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    read_states(words);
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    if (words[size_t(rank) * kWords + kHasFailed] == 0) continue;
    failed_("a sum has failed on rank " + std::to_string(rank) + ": see its message");
    interrupt();
    return false;
  }
  sum_rest(words);
  return true;
}

// Reads the records of sums that the device has reached.
void UnionWay::read_seen() {
  while (!issued_.empty()) {
    const Issued& one = issued_.front();
    const auto& seen = steps_.seen(one.call.number);
    const uint64_t number = __atomic_load_n(&seen.number, __ATOMIC_ACQUIRE);
    if (number <= one.call.number) return;
    const uint64_t united = seen.united, own = seen.own;
    if (number == one.call.number + 1 && seen.number == number) {
      if (one.call.capacity > 0) {
        stats().blocks += one.blocks;
        stats().nonzero_blocks += own;
        stats().result_blocks += united;
        if (united > one.call.capacity) alert_ = kAlert;
      }
      if (rank_ == 0 && one.call.sum != UnionPlans::kNone)
        chooser_.saw({one.call.sum, one.bytes, one.blocks, one.call.capacity, united});
    }
    issued_.pop_front();
  }
}

void UnionWay::write_state(std::vector<int64_t>& words) {
  int64_t* const mine = words.data() + size_t(rank_) * kWords;
  mine[kCalls] = int64_t(plans_.calls());
  mine[kAsked] = is_asked();
  mine[kVote] = !voting_ ? 0 : in_time_ ? kYes : kNo;
  mine[kHasFailed] = has_failed_;
  if (rank_ != 0 || voting_) return;
  const std::vector<UnionChange> changes = chooser_.changes(kChanges);
  int64_t* const proposed = words.data() + size_t(ranks_) * kWords;
  proposed[0] = int64_t(changes.size());
  proposed[1] = int64_t(std::max(most_calls_, plans_.calls()) + slack_);
  for (size_t i = 0; i < changes.size(); ++i) {
    proposed[2 + 3 * i] = int64_t(changes[i].sum);
    proposed[3 + 3 * i] = int64_t(changes[i].capacity);
    proposed[4 + 3 * i] = changes[i].two_levels;
  }
}

void UnionWay::read_states(const std::vector<int64_t>& words) {
  bool all = true;
  uint64_t most = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const int64_t* const state = words.data() + size_t(rank) * kWords;
    most = std::max(most, uint64_t(state[kCalls]));
    all = all && state[kVote] == kYes;
  }
  if (voting_) {
    plans_.count_votes(all);
    voting_ = false;
    if (!all && rank_ == 0) chooser_.refused(proposal_.changes);
    slack_ = all ? std::max<uint64_t>(slack_ / 2, 8) : slack_ * 2;
    changed_.notify_all();
  } else if (const int64_t* const proposed = words.data() + size_t(ranks_) * kWords;
             proposed[0] > 0) {
    proposal_ = {uint64_t(proposed[1]), {}};
    for (int64_t i = 0; i < proposed[0]; ++i)
      proposal_.changes.push_back(
          {uint32_t(proposed[2 + 3 * i]), uint64_t(proposed[3 + 3 * i]), proposed[4 + 3 * i] != 0});
    in_time_ = plans_.vote(proposal_);
    voting_ = true;
  }
  most_calls_ = most;
}

// Sums a window once the devices of all ranks have reached it. Each device gets its sum after the
// next round: then all ranks have the sum, and none depends on a rank that ends meanwhile.
void UnionWay::sum_rest(const std::vector<int64_t>& words) {
  for (int rank = 0; rank < ranks_; ++rank)
    if (words[size_t(rank) * kWords + kAsked] == 0) return;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  const auto& rest = steps_.rest();
  group_->allreduce(steps_.window(), steps_.window(), rest.blocks * settings_.block_size,
                    static_cast<DType>(rest.dtype));
  ++summed_;
  alert_ = kAlert;
  held_ = true;
}

void UnionWay::answer() {
  __atomic_thread_fence(__ATOMIC_RELEASE);
  steps_.rest().answered = summed_;
  held_ = false;
}

// --- the end

std::string UnionWay::lost() {
  if (steps_.rest().lost == 0) return "";
  const std::lock_guard<std::mutex> lock(mutex_);
  return "what did not fit a union's capacity was not summed, as the ranks lost touch: " +
         why_over_;
}

void UnionWay::interrupt(bool failed) {
  steps_.rest().failed = 1;
  const std::lock_guard<std::mutex> lock(mutex_);
  interrupted_ = true;
  has_failed_ = has_failed_ || failed;
  changed_.notify_all();
}

bool UnionWay::finish() {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> hopeless;
  bool idle = false;
  while (!(idle = steps_.idle())) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (interrupted_ && !hopeless) hopeless = Clock::now();
    }
    if (hopeless && std::chrono::duration<double>(Clock::now() - *hopeless).count() > kPatience_s)
      break;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    quit_ = true;
    changed_.notify_all();
    // A round may be under way; it ends when the other ranks reach it.
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return over_; });
  }
  if (group_) group_->leave();
  if (thread_.joinable()) thread_.join();
  // The thread ends without reading the last sums if another rank left in the thread's last round.
  const std::lock_guard<std::mutex> lock(mutex_);
  read_seen();
  return idle;
}

}  // namespace omnihvd
