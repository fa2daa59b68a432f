#include "nccl/union_way.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/stats.h"

namespace omnihvd {
namespace {

// The device cannot wake the thread. The thread looks so often whether it asks for something.
constexpr double kLeast_s = 0.0001, kMost_s = 0.002;
constexpr double kPatience_s = 5;  // to wait for interrupted sums
constexpr char kHasFailed[] = "a sum has failed on rank ";

}  // namespace

UnionWay::UnionWay(const Settings& agreed, int ranks, int hosts, int rank,
                   const KernelTable& kernels, std::shared_ptr<NcclGrid> levels)
    : settings_(agreed),
      rank_(rank),
      steps_(agreed, ranks, kernels, std::move(levels)),
      model_(ranks, hosts),
      plans_(model_, agreed.block_size, steps_.part_bytes(), agreed.gpu == Way::unite) {}

void UnionWay::begin(std::shared_ptr<Group> group) {
  group->set_uncounted();
  const std::lock_guard<std::mutex> lock(mutex_);
  group_ = std::move(group);
  over_ = false;
  thread_ = std::thread([this] { serve(); });
}

// --- on the calling thread

UnionCall UnionWay::next(const NcclReduction& r, DType dtype, const NcclExchange& exchange) {
  std::deque<Stopwatch::Time> times;  // a CUDA call may wait for the device, which may wait for us
  while (const auto time = stopwatch_.take()) times.push_back(*time);
  std::unique_lock<std::mutex> lock(mutex_);
  for (const auto& [call, look, sum] : times) plans_.took(call, look, sum);
  while (plans_.is_behind()) {
    const auto has_come = [&] {
      if (seen_.empty()) read_seen();
      return interrupted_ || !seen_.empty();
    };
    if (!has_come()) {
      lock.unlock();
      exchange.wait_until("the device to begin an ncclAllReduce called 64 calls before", [&] {
        const std::lock_guard<std::mutex> again(mutex_);
        return has_come();
      });
      lock.lock();
    }
    if (interrupted_) break;
    plans_.saw(seen_.front().united, seen_.front().trailer);
    seen_.pop_front();
  }
  if (interrupted_) throw Error("a sum on this communicator has failed");
  const UnionCall call = plans_.next(r.count, dtype);
  if (call.look) {
    const uint64_t block = settings_.block_size;
    issued_.push_back({call, dtype, (r.count + block - 1) / block});
    united_ += call.capacity > 0;
    changed_.notify_all();
  }
  return call;
}

uint32_t UnionWay::trailer_of(const UnionCall& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return omnihvd::trailer_of(over_, call.times);
}

// Reads the records of sums that the device has reached.
void UnionWay::read_seen() {
  for (; !issued_.empty(); issued_.pop_front()) {
    const Issued& one = issued_.front();
    const auto& record = steps_.seen(one.call.number);
    if (__atomic_load_n(&record.number, __ATOMIC_ACQUIRE) != one.call.number + 1) return;
    const uint64_t united = record.united, capacity = one.call.capacity;
    seen_.push_back({united, uint32_t(record.trailer)});
    if (capacity == 0) continue;
    --united_;
    stats().blocks += one.blocks;
    stats().nonzero_blocks += record.own;
    stats().result_blocks += united;
    if (united <= capacity) continue;
    const uint64_t room = steps_.window_blocks(one.dtype);
    windows_ += (united - capacity + room - 1) / room;
  }
}

// --- the thread

void UnionWay::serve() {
  std::string why = "this rank's thread has ended";
  try {
    watch();
  } catch (const std::exception& error) {  // a rank has left or died: NCCL reports it
    why = error.what();
    log(LogLevel::debug, "the ranks of a communicator do not talk any more: ", why);
  }
  if (held_) answer();
  steps_.rest().alone = 1;
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  why_over_ = why;
}

// While sums on the union are under way, looks whether the device asks for a window.
void UnionWay::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (double pause_s = kLeast_s; !quit_ && !interrupted_;) {
    read_seen();
    if (__atomic_load_n(&steps_.rest().asked, __ATOMIC_ACQUIRE) != summed_) {
      lock.unlock();
      sum_window();
      lock.lock();
      --windows_;
      pause_s = kLeast_s;
    } else if (united_ > 0 || windows_ > 0) {
      changed_.wait_for(lock, std::chrono::duration<double>(pause_s));
      pause_s = std::min(2 * pause_s, kMost_s);
    } else {
      changed_.wait(lock);
      pause_s = kLeast_s;
    }
  }
}

// All ranks have the same union and the same capacity, so all devices ask for the same windows. The
// device gets the sum once all ranks have it: then none depends on a rank that ends meanwhile.
void UnionWay::sum_window() {
  const auto& rest = steps_.rest();
  group_->allreduce(steps_.window(), steps_.window(), rest.blocks * settings_.block_size,
                    static_cast<DType>(rest.dtype));
  ++summed_;
  held_ = true;
  int64_t all_have_it = 1;
  group_->allreduce(&all_have_it, &all_have_it, 1, DType::i64);
  answer();
}

void UnionWay::answer() {
  __atomic_store_n(&steps_.rest().answered, summed_, __ATOMIC_RELEASE);
  held_ = false;
}

// --- the end

std::string UnionWay::lost() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (steps_.rest().lost != 0)
    return "what did not fit a union's capacity was not summed, as the ranks lost touch: " +
           why_over_;
  // A rank that leaves a group, or dies, is NCCL's to tell: its sums may be over.
  const std::string why = group_ ? group_->failure() : "";
  return why.find(kHasFailed) != std::string::npos ? why : "";
}

void UnionWay::interrupt(bool failed) {
  steps_.rest().failed = 1;
  std::shared_ptr<Group> group;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(interrupted_, true)) return;
    group = group_;
    changed_.notify_all();
  }
  if (!group) return;
  if (failed) group->fail(kHasFailed + std::to_string(rank_) + ": see its message");
  group->leave();
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
    const std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
    changed_.notify_all();
  }
  if (group_) group_->leave();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  read_seen();
  return idle;
}

}  // namespace omnihvd
