#include "shims/nccl/union_way.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"

namespace omnihvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPatience_s = 5;
constexpr double kHeld_s = 60;       // inside CUDA or NCCL: pinning memory, say, takes others long
constexpr double kComingBack_s = 1;  // from a call of NCCL
constexpr std::chrono::milliseconds kLook{200}, kGuardLook{500};
constexpr uint64_t kSampleBytes = 1 << 20;  // less says little of a link

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

CuAddress address_of(const void* p) { return reinterpret_cast<CuAddress>(p); }

}  // namespace

UnionWay::UnionWay(const Settings& agreed, const Network& network, int rank, CuContext context,
                   const KernelTable& kernels, Failed failed)
    : settings_(agreed),
      context_(context),
      kernels_(kernels),
      failed_(std::move(failed)),
      pipeline_(settings_, network.ranks, rank, kernels, stopping_),
      places_(kPlaces * sizeof(Place)),
      network_(network) {
  std::memset(places_.data(), 0, kPlaces * sizeof(Place));
}

UnionWay::~UnionWay() {
  for (const CuEvent e : ready_)
    if (e != nullptr) cuda().event_destroy(e);
}

void UnionWay::connect(const NcclExchange& exchange) {
  try {
    pipeline_.connect(exchange);
    const std::lock_guard<std::mutex> lock(mutex_);  // interrupt() looks for the thread
    thread_ = std::thread([this] { run(); });
    guard_ = std::thread([this] { guard(); });
  } catch (...) {
    pipeline_.comm().abort();  // the others learn of it
    throw;
  }
}

// --- on the calling thread
// ------------------------------------------------------------------------

// All ranks have learnt the same when they choose: what the sums tell that were called kPlaces
// calls ago, whatever is known of later ones.
Way UnionWay::next(uint64_t count, DType dtype) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto wait = [&](auto condition) {
    changed_.wait(lock, [&] { return stopping_ || condition(); });
    if (stopping_) throw Error("a sum on this communicator has failed");
  };
  wait([&] { return ended_ + kPlaces > made_; });
  while (!calls_of_turns_.empty() && calls_of_turns_.front() + kPlaces <= calls_) {
    wait([&] { return !verdicts_.empty(); });
    choices_.learn(verdicts_.front());
    verdicts_.pop_front();
    calls_of_turns_.pop_front();
  }
  const Way way = choices_.next(count, dtype);
  if (way == Way::unite) calls_of_turns_.push_back(calls_);
  ++calls_;
  return way;
}

void UnionWay::sum(const NcclReduction& r, DType dtype) {
  const uint64_t turn = made_++;
  const CuAddress at = places_.address() + (turn % kPlaces) * sizeof(Place);
  const auto number = static_cast<uint32_t>(turn / kPlaces + 1);
  CuEvent& ready = ready_[turn % kPlaces];
  place(turn).status = 1;
  if (ready == nullptr)
    check_cuda(cuda().event_create(&ready, kCuEventDisableTiming), "cuEventCreate");
  check_cuda(cuda().event_record(ready, r.stream), "cuEventRecord");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({r, dtype, turn, ready, Clock::now()});
    queued_ = made_;
    if (ended_ + 1 == queued_) to_be_guarded_.notify_one();
    if (released_) place(turn).flag = number;
    changed_.notify_all();
  }
  kernels_.of(dtype).await(address_of(r.out), r.count, at + offsetof(Place, flag), number,
                           at + offsetof(Place, status), r.stream);
}

// --- on the thread
// --------------------------------------------------------------------------------

// As long as the thread is inside CUDA or NCCL. Throws Error if the communicator is to be aborted:
// who does that waits for the end of this, and not while there is none.
class UnionWay::Inside {
 public:
  explicit Inside(UnionWay& way) : way_(way) {
    way_.inside_since_ = Clock::now().time_since_epoch().count();
    if (!way_.stopping_) return;
    way_.inside_since_ = 0;
    throw Error("the communicator was aborted");
  }
  ~Inside() { way_.inside_since_ = 0; }
  Inside(const Inside&) = delete;

 private:
  UnionWay& way_;
};

void UnionWay::run() {
  std::string why;
  try {
    const CudaScope scope(context_);
    try {
      while (true) {
        std::unique_lock<std::mutex> lock(mutex_);
        wait_watching(lock, [&] { return quit_ || !queue_.empty(); });
        if (stopping_ || queue_.empty()) break;
        under_way_.push_back(queue_.front());
        queue_.pop_front();
        lock.unlock();
        process(under_way_.back());
      }
    } catch (const std::exception& error) {
      if (!stopping_) why = error.what();
    }
    if (!why.empty()) failed_(why);
    if (!why.empty() || stopping_) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop();
      }
      drain();
      release_all();
    }
  } catch (const std::exception& error) {
    failed_(error.what());
    release_all();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

void UnionWay::process(const UnionSum& sum) {
  double note = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    note = my_seconds_per_byte_;
  }
  {
    const Inside inside(*this);
    pipeline_.find_union(sum, note, &UnionWay::on_known, this);
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_watching(lock, [&] { return known_ > sum.turn; });
    if (stopping_) throw Error("the communicator was aborted");
  }
  const SumSeen seen = pipeline_.read_union(sum, &note);
  Way better = Way::unite;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    network_.seconds_per_byte = note;
    better = choose(settings_.gpu, seen, network_);
    verdicts_.push_back(better);
    changed_.notify_all();
  }
  auto begun = std::make_unique<Begun>(
      Begun{this, Way::unite, sum.turn, seen.bytes, 0, sum.made, Clock::now()});
  if (better == Way::original) begun->way = Way::original;
  const Inside inside(*this);
  begun->summed_bytes =
      better == Way::original ? pipeline_.sum_whole(sum) : pipeline_.sum_batches(sum);
  stats().library_bytes += ring_bytes(static_cast<uint64_t>(network_.ranks), begun->summed_bytes);
  pipeline_.end(sum, &UnionWay::on_end, begun.get());
  static_cast<void>(begun.release());  // on_end() has it now
}

// Waits for a condition, or for stopping_, and meanwhile looks whether the sums get on. Throws
// Error: they do not.
template <typename Condition>
void UnionWay::wait_watching(std::unique_lock<std::mutex>& lock, Condition condition) {
  const auto over = [&] { return stopping_ || condition(); };
  while (!over()) {
    if (ended_ == queued_) {  // sleep until there is something to do
      changed_.wait(lock, [&] { return over() || ended_ != queued_; });
    } else if (!changed_.wait_for(lock, kLook, over)) {
      lock.unlock();
      watch();
      lock.lock();
    }
  }
}

void UnionWay::watch() {
  uint64_t known, ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    known = known_, ended = ended_;
  }
  while (!under_way_.empty() && under_way_.front().turn < ended) under_way_.pop_front();
  if (under_way_.empty()) return;
  const Inside inside(*this);
  const NcclResult error = async_error();
  if (error != NcclResult::in_progress) check_nccl(error, "NCCL, on the union of the blocks,");
  const UnionSum& oldest = under_way_.front();
  watch_.look(pipeline_.progress(oldest, known > oldest.turn), oldest.r.count);
}

// On a thread that calls neither CUDA nor NCCL. Who waits for the device with CUDA's locks held, to
// free memory or to load a kernel, may keep the other thread from queueing what the device waits
// for. Then only the end of what the callers' streams wait for helps.
void UnionWay::guard() {
  const double patience_s =
      settings_.timeout_s > 0 ? std::min(kHeld_s, settings_.timeout_s) : kHeld_s;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!released_ && (stopping_ || !quit_)) {
    if (ended_ == queued_ && !stopping_) {
      to_be_guarded_.wait(lock);
      continue;
    }
    to_be_guarded_.wait_for(lock, kGuardLook);
    const int64_t since = inside_since_;
    const Clock::time_point entered{Clock::duration(since)};
    if (since == 0 || seconds_since(entered) < patience_s) continue;
    lock.unlock();
    failed_("a call of CUDA or NCCL has not returned for " + std::to_string(long(patience_s)) +
            " s: another thread waits for the device, perhaps to free memory or to load a kernel, "
            "and the device for a sum. Avoid that while sums are under way, or set "
            "OMNIHVD_GPU=stream");
    lock.lock();
    stop();
    lock.unlock();
    return release_all();
  }
}

// Sums become known, and end, in their order.
void UnionWay::on_known(void* way) {
  UnionWay& self = *static_cast<UnionWay*>(way);
  const std::lock_guard<std::mutex> lock(self.mutex_);
  ++self.known_;
  self.changed_.notify_all();
}

// NCCL ends early only when it is aborted, which is after stopping_ has been set.
void UnionWay::on_end(void* argument) {
  const std::unique_ptr<Begun> begun(static_cast<Begun*>(argument));
  UnionWay& self = *begun->owner;
  const std::lock_guard<std::mutex> lock(self.mutex_);
  if (self.stopping_) return;
  count_way(begun->way, begun->bytes, begun->made);
  self.measured(*begun);
  Place& place = self.place(begun->turn);
  place.status = 0;
  __atomic_store_n(&place.flag, uint32_t(begun->turn / kPlaces + 1), __ATOMIC_RELEASE);
  ++self.ended_;
  self.changed_.notify_all();
}

// The first sums make NCCL's connections.
void UnionWay::measured(const Begun& begun) {
  if (begun.summed_bytes < std::min(kSampleBytes, pipeline_.slot_bytes()) || ++samples_ < 3) return;
  const double sample = seconds_since(begun.known) / double(begun.summed_bytes);
  my_seconds_per_byte_ += (sample - my_seconds_per_byte_) / (my_seconds_per_byte_ == 0 ? 1 : 4);
}

// --- the end
// --------------------------------------------------------------------------------------

// Until the streams have done with the callers' memory, which they soon have as NCCL is aborted.
void UnionWay::drain() {
  draining_ = true;
  inside_since_ = Clock::now().time_since_epoch().count();
  const auto begin = Clock::now();
  while (!pipeline_.idle() && seconds_since(begin) < kPatience_s)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  const bool drained = pipeline_.idle();
  inside_since_ = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  drained_ = drained;
}

void UnionWay::release_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  released_ = true;
  for (uint64_t turn = queued_ < kPlaces ? 0 : queued_ - kPlaces; turn < queued_; ++turn)
    __atomic_store_n(&place(turn).flag, uint32_t(turn / kPlaces + 1), __ATOMIC_RELEASE);
  changed_.notify_all();
  to_be_guarded_.notify_all();
}

// With the mutex. Aborting NCCL may wait for the callers' streams. It frees the communicator, so
// whoever is in a call on it is given time to come back; if he does not, it is what frees him.
void UnionWay::stop() {
  if (!stopping_.exchange(true)) {
    drained_ = false;
    aborter_ = std::thread([this] {
      const auto begin = Clock::now();
      while (inside_since_ != 0 && !draining_ && seconds_since(begin) < kComingBack_s)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      pipeline_.comm().abort();
    });
  }
  changed_.notify_all();
  to_be_guarded_.notify_all();
}

void UnionWay::interrupt() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (quit_ || !thread_.joinable()) return;
  stop();
  changed_.wait_for(lock, std::chrono::duration<double>(kPatience_s), [&] { return released_; });
  lock.unlock();
  release_all();
}

bool UnionWay::finish() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || ended_ == queued_; });
    quit_ = true;
    changed_.notify_all();
    to_be_guarded_.notify_all();
    // A thread that CUDA or NCCL holds is left alone, with all that it may use.
    if (stopping_ &&
        !changed_.wait_for(lock, std::chrono::duration<double>(kPatience_s), [&] { return over_; }))
      return false;
  }
  if (thread_.joinable()) thread_.join();
  if (guard_.joinable()) guard_.join();
  if (aborter_.joinable()) aborter_.join();
  pipeline_.comm().destroy();
  return drained_;
}

}  // namespace omnihvd
