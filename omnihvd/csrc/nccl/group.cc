#include "nccl/group.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "algorithms/host_grid.h"
#include "algorithms/part_exchange.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/on_all_ranks.h"

namespace omnihvd {
namespace {

constexpr double kPatience_s = 5;  // to wait for failed work

// The returned lock is not held if another thread keeps the mutex for a second.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
  for (int i = 0; i < 1000 && !lock.try_lock(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return lock;
}

// Never destroyed: the last owner of a group may be a progress thread, which cannot end its own
// engine.
const std::shared_ptr<Engine>& engine() {
  static const auto& kept = *new std::shared_ptr<Engine>(process_engine());
  return kept;
}

// Memory that may still be written must never be freed.
void give_up(const std::vector<std::shared_ptr<StagingSet>>& sets) { new auto(sets); }

}  // namespace

NcclGroup::NcclGroup(NcclComm comm) : comm_(comm), exchange_(comm, aborted_) {}

NcclGroup::~NcclGroup() {
  if (host_abort_.joinable()) host_abort_.detach();
  if (union_) new auto(union_);
  give_up(staging_.take_all());
  terms_.give_up();
  exchange_.give_up();
}

void NcclGroup::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (!failure_.empty()) return;
  failure_ = why;
  log(aborted_ ? LogLevel::debug : LogLevel::error, "ncclAllReduce failed: ", why);
}

std::string NcclGroup::failure() {
  if (staging_.failed_on_host())
    fail("another rank of this host failed to reduce its part: see its message");
  if (const auto grid = std::atomic_load(&grid_)) {
    const NcclResult error = grid->async_error();
    if (error != NcclResult::success && error != NcclResult::in_progress)
      fail(std::string("NCCL inside this host, or between those with its place in others: ") +
           nccl().error_string(error));
  }
  if (const auto way = std::atomic_load(&union_))
    if (const std::string why = way->lost(); !why.empty()) fail(why);
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void NcclGroup::or_fail_for_good(const std::function<void()>& work) {
  const std::lock_guard<std::mutex> lock(calls_);
  if (const std::string why = failure(); !why.empty()) throw Error(why);
  try {
    if (aborted_) throw Error("the communicator was aborted");
    const CudaScope scope(exchange_.context());
    work();
  } catch (const std::exception& error) {
    interrupt(error.what());
    throw;
  }
}

// --- bootstrap ----------------------------------------------------------------------------------

void NcclGroup::agree(const std::vector<std::shared_ptr<NcclGroup>>& fresh) {
  std::vector<NcclExchange*> exchanges;
  std::vector<std::string> words;
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& group : fresh) {
    locks.emplace_back(group->calls_);
    exchanges.push_back(&group->exchange_);
    words.push_back(group->terms_.greet(group->exchange_));
  }
  // Each rank takes all steps, whatever it learns on the way: the others depend on it.
  const auto step = [&](const auto& read) {
    const auto said = NcclExchange::allgather(exchanges, words);
    for (size_t i = 0; i < fresh.size(); ++i) {
      try {
        read(*fresh[i], said[i]);
      } catch (const Error& error) {
        fresh[i]->fail(error.what());
      }
    }
  };
  try {
    step([](NcclGroup& group, const auto& said) {
      group.terms_.read_greetings(said, group.exchange_.rank());
    });
    for (size_t i = 0; i < fresh.size(); ++i)
      words[i] = fresh[i]->terms_.prepare(fresh[i]->exchange_, !fresh[i]->failure().empty());
    step([](NcclGroup& group, const auto& said) {
      group.terms_.read_obstacles(said, group.exchange_);
    });
  } catch (const Error& error) {
    for (const auto& group : fresh) group->fail(error.what());
  }
  for (const auto& group : fresh) group->agreed_ = true;
}

// --- connecting

void NcclGroup::connect() {
  try {
    or_fail_for_good(
        [this] { terms_.settings().gpu == Way::stream ? connect_streams() : connect_union(); });
  } catch (const std::exception&) {  // kept
  }
  connected_ = true;
}

// For sums on unions. If the two levels cannot be made, the sums use one level: that is no failure.
Hierarchy NcclGroup::make_levels() {
  choose_levels();
  if (!grid_) return Hierarchy::off;
  std::string why = grid_->make_host(exchange_);
  if (why.empty()) why = grid_->make_between(exchange_);
  if (why.empty()) return terms_.settings().hierarchy;
  say_one_level(why);
  return Hierarchy::off;
}

// If any rank has an obstacle, NCCL makes all calls of the communicator on all ranks.
void NcclGroup::connect_union() {
  Settings agreed = terms_.settings();
  agreed.aggregators.clear();
  agreed.hierarchy = make_levels();
  const auto failed = [group = weak_from_this()](const std::string& reason) {
    if (const auto self = group.lock()) self->fail(reason);
  };
  std::shared_ptr<UnionWay> way;
  // Kept if a later step fails: freeing it would wait for the device, which may then wait for ever.
  const auto make = [&] {
    way = std::make_shared<UnionWay>(agreed, size(), rank(), terms_.kernels(),
                                     agreed.hierarchy == Hierarchy::off ? nullptr : grid_, failed);
    std::atomic_store(&union_, way);
  };
  if (const std::string why = on_all_ranks(exchange_, make); !why.empty()) {
    terms_.refuse(Reason::memory);
    if (rank() == 0) log(LogLevel::warning, "a communicator is left to NCCL; ", why);
    return;
  }
  way->steps().connect(exchange_);
  way->begin(engine()->join(exchange_, agreed));
}

void NcclGroup::connect_streams() {
  choose_levels();
  std::shared_ptr<Levels> levels;
  if (!grid_) {
    levels = one_level(engine()->join(exchange_, terms_.settings()));
  } else {
    const auto between = join_part(grid_->across());
    levels = compresses_first() ? compress_first(join_part(grid_->inside()), between)
                                : one_level(between);
  }
  std::atomic_store(&levels_, levels);
}

// Throws Error on all ranks if one fails.
std::shared_ptr<Group> NcclGroup::join_part(const std::vector<int>& ranks) {
  PartExchange part(exchange_, ranks);
  std::shared_ptr<Group> group;
  std::string failure;
  try {
    if (!compresses_first())
      if (const std::string why = grid_->make_host(exchange_); !why.empty()) throw Error(why);
    group = engine()->join(part, terms_.settings());
  } catch (const Error& error) {
    failure = error.what();
  }
  part.finish(failure);
  return group;
}

void NcclGroup::leave_levels(bool wait) {
  if (const auto levels = std::atomic_load(&levels_)) levels->leave(wait);
}

void NcclGroup::choose_levels() {
  const Hierarchy wanted = terms_.settings().hierarchy;
  if (wanted == Hierarchy::off) return;
  const char* obstacle = grid_obstacle(terms_.hosts());
  const bool in_memory = terms_.settings().gpu == Way::stream && compresses_first();
  if (in_memory && !terms_.colocated())
    obstacle = "OMNIHVD_COMPRESS_FIRST works without dedicated aggregators only";
  if (!in_memory && !terms_.can_part())
    obstacle = "this NCCL has no ncclCommInitRankConfig (2.14 has)";
  if (obstacle == nullptr) {
    std::atomic_store(&grid_, std::make_shared<NcclGrid>(rank(), terms_.hosts()));
  } else {
    say_one_level(obstacle);
  }
}

void NcclGroup::say_one_level(const std::string& why) const {
  if (rank() != 0) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    const bool asked = terms_.settings().hierarchy == Hierarchy::on;
    log(asked ? LogLevel::warning : LogLevel::info, "the ", size(),
        " ranks of a communicator sum without reducing inside the hosts first: ", why);
  });
}

// --- leaving

// Waits until the streams and the engine no longer use the sets. Returns false if they will not
// stop, or not soon.
bool NcclGroup::wait_until_free(const std::vector<std::shared_ptr<StagingSet>>& sets) {
  using Clock = std::chrono::steady_clock;
  constexpr long kOurs = 2;  // references: in the staging, and in `sets`
  std::optional<Clock::time_point> hopeless;
  for (const auto& set : sets) {
    while (true) {
      const CuResult state = cuda().event_query(set->free);
      if (state != CuResult::success && state != CuResult::not_ready) return false;
      if (state == CuResult::success && set.use_count() == kOurs) break;
      if (!hopeless && (aborted_ || !failure().empty())) {
        leave_levels(true);
        staging_.release_waiters();
        hopeless = Clock::now();
      }
      if (hopeless && std::chrono::duration<double>(Clock::now() - *hopeless).count() > kPatience_s)
        return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

void NcclGroup::leave() {
  if (host_abort_.joinable()) host_abort_.join();  // it was shrunk
  const std::lock_guard<std::mutex> lock(calls_);
  const CudaScope scope(exchange_.context());
  const bool free = free_memory();
  if (const auto grid = std::atomic_load(&grid_)) free ? grid->destroy() : grid->abort();
}

// Returns false if the memory is given up instead, because it may still be in use, or because
// freeing it would wait for that use.
bool NcclGroup::free_memory() {
  const bool idle = exchange_.idle();
  bool free = wait_until_free(staging_.sets()) && idle;
  if (const auto way = std::atomic_load(&union_)) {
    const bool ended = way->finish() && idle;
    if (!ended) new auto(way);
    std::atomic_store(&union_, std::shared_ptr<UnionWay>());
    free = free && ended;
  }
  leave_levels(!free);
  const auto sets = staging_.take_all();
  if (!free) {
    log(LogLevel::warning, "a communicator that failed still uses its memory, which is given up");
    give_up(sets);
    exchange_.give_up();
    terms_.give_up();
    return false;
  }
  exchange_.release();
  terms_.free();
  return true;
}

// Leaves before it releases: what the engine sends must not be what the stream writes next.
void NcclGroup::interrupt(const std::string& why) {
  fail(why);
  leave_levels(true);
  staging_.release_waiters();
  if (const auto way = std::atomic_load(&union_)) way->interrupt(!aborted_);
}

void NcclGroup::abort_host() {
  if (const auto grid = std::atomic_load(&grid_); grid && !host_abort_.joinable())
    host_abort_ = std::thread([grid] { grid->abort(); });
}

NcclResult NcclGroup::abort(const std::function<NcclResult()>& abort_nccl) {
  aborted_ = true;
  interrupt("the communicator was aborted");
  {
    // A thread in a call sees the abort soon, and may have joined levels since. If NCCL or CUDA
    // blocks that thread, aborting NCCL frees it.
    const std::unique_lock<std::mutex> lock = lock_soon(calls_);
    if (lock.owns_lock()) leave_levels(true);
  }
  abort_host();
  return abort_nccl();
}

void NcclGroup::reclaim() {
  if (host_abort_.joinable()) host_abort_.join();
  const std::unique_lock<std::mutex> lock = lock_soon(calls_);
  if (!lock.owns_lock()) return;
  const CudaScope scope(exchange_.context());
  free_memory();
}

}  // namespace omnihvd
